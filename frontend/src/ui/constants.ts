// The rules that the server and this script share, written by `make rules` from the server's own; never by hand.
/* eslint-disable */
export const KINDS = {"waiting":["held","pending"],"live":["running","scheduled","stopping"],"final":["cancelled","completed","failed","preempted"]} as const;
export const VERB_STATES = {"hold":{"job":["pending"],"array":["pending","running"]},"release":{"job":["held"],"array":["held"]},"requeue":{"job":["scheduled","running"],"array":[]},"retry":{"job":["failed","preempted","cancelled"],"array":["failed"]},"extend":{"job":["pending","held","scheduled","running"],"array":["pending","held","scheduled","running"]},"cancel":{"job":["pending","held","scheduled","running","stopping"],"array":["pending","held","scheduled","running"]}} as Readonly<Record<string, { job: readonly string[]; array: readonly string[] }>>;
export const VERB_EXCEPT = {"release":"held_by_admin","cancel":"cancelled"} as Readonly<Record<string, string>>;
export const FOR_ADMINS_ALWAYS = ["release"] as readonly string[];
export const WAIT_GROUPS = ["next","quota","capacity","you","held"] as const;
export const WAIT_GROUP_OF = {"starting":"next","scheduler_behind":"next","reclaim_pending":"next","quota_wait":"quota","tenant_limit":"quota","budget":"quota","user_cap":"quota","never_fits":"you","constraint":"you","not_before":"you","retry_backoff":"you","dependency":"you","max_parallel":"you"} as Readonly<Record<string, (typeof WAIT_GROUPS)[number]>>;
export const WAIT_GROUP_ELSE = "capacity" as const;
export const NODE_GROUPS = [["attention","Needs attention"],["closed","Closed by an admin, or by the system after faults"],["open","Open"]] as const;
export const CELLS = ["busy","held_idle","free","unavailable"] as const;
export const MOMENT = "(\\d{4}-\\d\\d-\\d\\d[T ]\\d\\d:\\d\\d(?::\\d\\d)?(?:\\.\\d+)?(?:Z| UTC))" as const;
export const SHAPES = {"busy":"■","held-idle":"◧","free":"□","unavailable":"▨","ok":"□","hot":"▲","quarantined":"✕","dirty":"◆","foreign":"◆","degraded":"✕","lost":"▨","unknown":"▨","pending":"○","held":"‖","scheduled":"◔","running":"■","stopping":"◩","completed":"✓","failed":"✕","cancelled":"⊘","preempted":"↺","online":"■","joined":"○","open":"□","cordoned":"‖","draining":"◩","ended":"✓","red":"✕","amber":"▲","active":"■","revoked":"⊘","expired":"⊘"} as Readonly<Record<string, string>>;
