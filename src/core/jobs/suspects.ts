/** Work that was active when a worker was lost, claimed by this process. */
export type Suspect = {
  id: string
  /** Queue of a message, or name of other work. */
  queue: string
  /** Number of workers that were lost while it was active. */
  losses: number
  /** Whether it is at its limit of lost workers: it fails with the next one. */
  strict: boolean
  /** Runs it, or requeues it if the process stops. Resolves when it has ended or waits for other work. */
  run(): Promise<void>
  /** Records that other work is in progress alongside it. */
  endProbation(): Promise<void>
}

/** A kind of claimed work of a process, which pauses while a suspect runs and may have suspects. */
export type SuspectSource = {
  /** Stops or resumes claiming. */
  pause(paused: boolean): void
  /** Whether nothing is in progress or being claimed, except suspects with the given IDs. */
  isIdle(except: ReadonlySet<string>): boolean
  /** Returns the next suspect that is due; null without one. */
  find(): Promise<Pick<Suspect, 'losses' | 'strict'> | null>
  /**
   * Claims the next suspect that is due; null if another worker claims it.
   * @param alone whether nothing else is in progress in this process
   */
  claim(alone: boolean): Promise<Suspect | null>
}
