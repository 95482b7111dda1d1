/** Field of the data of a message: number of workers that were lost while it was active. */
export const LOSSES = 'worker_losses'

/**
 * Field of the data of a message that was claimed as a suspect and is in its probation: whether no other work was in
 * progress alongside it.
 */
export const ALONE = 'ran_alone'

/** SQL expression of the data of a message without lost workers. */
export const withoutLosses = (data: string): string => `${data} - '${LOSSES}' - '${ALONE}'`

/** Table of the time for which suspects of projects paused workers. */
export const ACCOUNTS = 'pgboss.muster_suspect_time'

/** Part of the time of a worker for which the suspects of one project may pause it. */
export const SHARE = 0.25

/** Time for which they may pause it in addition, before they wait. */
const BURST_MS = 60_000

/**
 * Creates ACCOUNTS. `paid_at` is the time at which the share of the project will have paid for all pauses; a row in the past
 * equals none.
 */
export const createAccounts = `create table if not exists ${ACCOUNTS}
  (project_id text primary key, paid_at timestamptz not null)`

/** SQL join of the account `a` of a project. */
export const joinAccount = (project: string): string => `left join ${ACCOUNTS} a on a.project_id = ${project}`

/** SQL condition that the project of the account `a` has not exhausted its time. */
export const hasTimeLeft = `(a.paid_at is null or a.paid_at < now() + interval '${BURST_MS / SHARE} ms')`

/** SQL order by the debt of the account `a`, so that projects take turns. */
export const leastDebt = 'greatest(a.paid_at, now())'

/** Work that was active when a worker was lost, claimed by this process. */
export type Suspect = {
  id: string
  /** Project whose time it takes; null for work of the deployment. */
  project: string | null
  /** Queue of a message, or name of other work. */
  queue: string
  /** Number of workers that were lost while it was active. */
  losses: number
  /** Whether it is at its limit of lost workers: it fails with the next one. */
  strict: boolean
  /**
   * Runs it, or requeues it if the process stops. Resolves with true when it has ended, with false when it waits for other
   * work.
   */
  run(): Promise<boolean>
  /** Records that other work is in progress alongside it. */
  endProbation(): Promise<void>
}

/** A kind of claimed work of a process, which pauses while a suspect runs and may have suspects. */
export type SuspectSource = {
  /** Stops or resumes claiming. */
  pause(paused: boolean): void
  /** Whether nothing is in progress or being claimed, except work that waits for other work and suspects with the given IDs. */
  isIdle(except: ReadonlySet<string>): boolean
  /** Whether nothing is in progress or being claimed. */
  isEmpty(): boolean
  /** Returns the next suspect that is due; null without one. */
  find(): Promise<Pick<Suspect, 'losses' | 'strict'> | null>
  /**
   * Claims the next suspect that is due; null if another worker claims it.
   * @param alone whether nothing else is in progress in this process
   */
  claim(alone: boolean): Promise<Suspect | null>
}
