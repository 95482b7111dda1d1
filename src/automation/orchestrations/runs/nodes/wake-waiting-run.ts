import { z } from 'zod'
import { sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { runWakeQueue } from '../queue.ts'

const waitingRunRow = sql.type(z.object({ run_id: z.string(), project_id: z.string() }))

/**
 * Wakes the run with a node that waits for a turn or a decision. By orchestration_node_executions_generation and
 * orchestration_node_executions_decision.
 */
export async function wakeWaitingRun(tx: Tx, column: 'generation_id' | 'decision_id', id: string): Promise<void> {
  const found = await tx.maybeOne(waitingRunRow`
    select run_id, project_id from orchestration_node_executions where ${sql.identifier([column])} = ${id}`)
  if (found) tx.send(runWakeQueue, found)
}
