import type { Tx } from '../../../core/db/writer.ts'
import { extensionPoint } from '../../../core/declarations.ts'
import type { RunRow } from '../model.ts'

/** A module that starts runs for rows of its own, which move with the runs. */
export type RunWatcher = {
  /** Whether a run is one of its. */
  watches(run: RunRow): boolean
  /** Inside the transaction in which the run ends or begins to wait for input, behind the run's row. */
  changed(tx: Tx, run: RunRow): Promise<void>
}

export const runWatchers = extensionPoint<RunWatcher>('watchers of runs')
