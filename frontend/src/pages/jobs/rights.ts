// The jobs that the user can act on, from the page's form: their own as a member, all as a tenant owner.
import type { JobRow } from "../../live/topics";

export class Rights {
  private readonly form = document.querySelector<HTMLFormElement>("form[data-act-on-several]");
  private readonly isAdmin = this.form?.dataset.admin !== undefined;
  private readonly member = names(this.form?.dataset.member);
  private readonly owner = names(this.form?.dataset.owner);

  /** Whether the user can act on any jobs. */
  get areAny(): boolean {
    return this.isAdmin || this.member.size > 0;
  }

  over(row: JobRow): boolean {
    return this.isAdmin || this.owner.has(row.tenant) || (this.member.has(row.tenant) && row.user === this.form?.dataset.user);
  }
}

function names(text = ""): ReadonlySet<string> {
  return new Set(text.split(" ").filter(Boolean));
}
