import type { Tx } from '../../../core/db/writer.ts'
import { extensionPoint } from '../../../core/declarations.ts'
import type { RunRow } from '../model.ts'

/** A module with rows that follow the runs it starts. */
export type RunWatcher = {
  /** Whether the run belongs to this module. */
  watches(run: RunRow): boolean
  /** Called in the transaction in which the run ends or starts to await input, after the run is locked. */
  changed(tx: Tx, run: RunRow): Promise<void>
}

export const runWatchers = extensionPoint<RunWatcher>('run watchers')
