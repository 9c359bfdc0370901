// Whose jobs the person may act on, as the page's form says: their own as a member of the tenant, all as its owner.
import type { JobRow } from "../../live/topics";

export class Rights {
  private readonly form = document.querySelector<HTMLFormElement>("form[data-act-on-several]");
  private readonly isAdmin = this.form?.dataset.admin !== undefined;
  private readonly member = names(this.form?.dataset.member);
  private readonly owner = names(this.form?.dataset.owner);

  /** Whether there may be such jobs at all. */
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
