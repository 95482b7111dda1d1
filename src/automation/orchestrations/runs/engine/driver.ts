import { z } from 'zod'
import type { Node } from '#automation/orchestrations/definition/model.ts'
import type { TurnContentEraser } from '#control/retention/erasure.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { ModelMessage } from '#execution/providers/model-messages.ts'
import type { RunRow, RunStatus } from '../model.ts'
import type { NodeExecutionRow } from './node-execution-store.ts'
import type { ExpressionState } from './run-state.ts'

/**
 * A driver is a module with records that change in the transactions of its runs. It provides the state of their
 * expressions and receives commands in their place. Runs reference their driver by name in `driver`.
 */

/** Outcome of a node execution. */
export type DrivenOutcome = { artifact: unknown; label?: string | null; through?: boolean }

/** Changes of an advance, before they are written. */
export type DrivenChange = {
  run: RunRow
  before: RunStatus
  /** New and changed node executions, in order of creation. */
  changed: readonly NodeExecutionRow[]
  /** Node executions that are active or not yet applied. */
  open: readonly NodeExecutionRow[]
  now: string
}

/** Records of one run, valid for one transaction. */
export type DrivenRun = {
  /** Returns the values that expressions of nodes read. */
  roots(run: RunRow): ExpressionState
  /** Returns the label that the edges of a condition are compared with. */
  label(node: Node, value: unknown): string
  /** Returns the messages of an agent node; null for the messages of the node itself. */
  messages(node: Node, input: Record<string, unknown>): ModelMessage[] | null
  /**
   * Returns the outcome to store.
   * @throws the failure of the node execution
   */
  outcome(run: RunRow, row: NodeExecutionRow, outcome: DrivenOutcome, now: string): Promise<DrivenOutcome>
  /** Returns the failure to record. */
  failure(node: Node, failure: RecordedFailure): RecordedFailure
  /** Writes the records in the transaction of the run and reports its failure. */
  save(advanced: DrivenChange): Promise<void>
}

/** A module that drives runs. */
export type RunDriver = {
  name: string
  /**
   * Locks and loads the records of a run; their locks precede the lock of the run. Null if the driver no longer drives
   * it.
   */
  open(tx: Tx, services: Services, runId: string): Promise<DrivenRun | null>
  /** Refuses a command addressed to the run itself. */
  refuse(db: Queryable, runId: string): Promise<never>
  /** Erases turn content in the records, before the content of runs: their locks precede the locks of runs. */
  content: TurnContentEraser
}

export const runDrivers = extensionPoint<RunDriver>({
  name: 'run drivers',
  folder: 'automation/orchestrations/runs/engine',
  description: 'Drives runs that belong to a record of a later module, such as an execution of a playbook',
})

const driverRow = sql.type(z.object({ driver: z.string() }))

/** Returns the driver of a run; undefined for a run without one. By primary key. */
export async function findDriver(db: Queryable, runId: string): Promise<RunDriver | undefined> {
  const name = await db.maybeOneFirst(driverRow`
    select driver from orchestration_runs where id = ${runId} and driver is not null`)
  return name === null ? undefined : runDrivers.all().find(driver => driver.name === name)
}
