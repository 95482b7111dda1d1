import { z } from 'zod'
import type { TurnContentEraser } from '../../../control/retention/erasure.ts'
import type { RecordedFailure } from '../../../core/api/errors.ts'
import { type Queryable, sql } from '../../../core/db/sql.ts'
import type { Tx } from '../../../core/db/writer.ts'
import { extensionPoint } from '../../../core/declarations.ts'
import type { Services } from '../../../core/process/services.ts'
import type { ModelMessage } from '../../../execution/providers/model-messages.ts'
import type { Node } from '../../orchestrations/model.ts'
import type { RunRow, RunStatus } from '../model.ts'
import type { NodeExecutionRow } from './node-execution-store.ts'
import type { ExpressionState } from './run-state.ts'

/**
 * Runs that a module of its own drives: it keeps records beside them which change in the transactions of the run, says what
 * their expressions read, and takes commands in place of the run. A run names its driver in `driver`.
 */

/** How an attempt of a node comes out. */
export type DrivenOutcome = { artifact: unknown; label?: string | null; through?: boolean }

/** What an advance has done, as it is about to be written. */
export type DrivenChange = {
  run: RunRow
  before: RunStatus
  /** Attempts that are new or have changed, in the order in which they came. */
  changed: readonly NodeExecutionRow[]
  /** Attempts that are not over, or whose outcome is not applied. */
  open: readonly NodeExecutionRow[]
  now: string
}

/** The records of one run, for as long as a transaction holds them. */
export type DrivenRun = {
  /** What expressions of nodes read. */
  roots(run: RunRow): ExpressionState
  /** What edges behind a condition are compared with. */
  label(node: Node, value: unknown): string
  /** What an agent is asked; null to have the node say it as any does. */
  messages(node: Node, input: Record<string, unknown>): ModelMessage[] | null
  /**
   * The outcome of an attempt as it is kept.
   * @throws what fails the attempt
   */
  outcome(run: RunRow, row: NodeExecutionRow, outcome: DrivenOutcome, now: string): DrivenOutcome
  /** What is recorded of a failure of a node. */
  failure(node: Node, failure: RecordedFailure): RecordedFailure
  /** Writes the records in the transaction that writes the run, and tells of its failure. */
  save(advanced: DrivenChange): Promise<void>
}

/** A module that drives runs. */
export type RunDriver = {
  name: string
  /** Takes its records under their locks, which come before that of the run. Null when the run is none of its any more. */
  open(tx: Tx, services: Services, runId: string): Promise<DrivenRun | null>
  /** Refuses a command that was given to a run. */
  refuse(db: Queryable, runId: string): Promise<never>
  /** What its records keep of turns: erased before that of runs, as their locks come before those of runs. */
  content: TurnContentEraser
}

export const runDrivers = extensionPoint<RunDriver>('drivers of runs')

const named = sql.type(z.object({ driver: z.string() }))

/** The driver of a run; undefined without one. By the primary key. */
export async function driverOf(db: Queryable, runId: string): Promise<RunDriver | undefined> {
  const name = await db.maybeOneFirst(named`
    select driver from orchestration_runs where id = ${runId} and driver is not null`)
  return name === null ? undefined : runDrivers.all().find(driver => driver.name === name)
}
