import { fileExceptionInTx } from '#control/exceptions/file-exception.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import { storableValue } from '#core/base/storable-text.ts'
import type { Tx } from '#core/writes/writer.ts'
import { memoryRuleKind } from './model.ts'
import { countHandlerFailure, resetFailures, settleFiringRow } from './store.ts'

/** Delays before the second and the third attempt of a handler. */
export const RETRY_MS = [10_000, 60_000]

/** Number of consecutive failed firings after which an exception is filed. */
const FAILURES_BEFORE_EXCEPTION = 3

/** Failures of a provider or a tool that a retry may avoid; other codes indicate an invalid rule. */
const TRANSIENT = new Set([
  'AI_PROVIDER_ERROR',
  'GENERATION_FAILED',
  'INTERNAL_ERROR',
  'OUTPUT_SCHEMA_VALIDATION_FAILED',
  'PIPELINE_STEP_FAILED',
  'SERVICE_NOT_READY',
  'TEXT_ENCODED_TOOL_CALL',
  'TOOL_AUTH_FAILED',
  'TOOL_HTTP_ERROR',
])

/** Returns the delay before the next attempt of a handler, or null if it is not retried. */
export const handlerRetryDelay = ({ code }: RecordedFailure, failures: number): number | null =>
  TRANSIENT.has(code) ? (RETRY_MS[failures] ?? null) : null

/** Outcome of a firing: facts written, failed, or not needed any more. */
export type RuleFiringEnd = 'done' | 'unneeded' | { error: RecordedFailure }

/**
 * Settles a firing unless it is settled; the caller has locked it. Records its counts on the turn, and files an
 * exception after every third consecutive failure of a rule.
 */
export async function settleRuleFiring(tx: Tx, firingId: string, outcome: RuleFiringEnd): Promise<void> {
  const error = typeof outcome === 'object' ? (storableValue(outcome.error) as RecordedFailure) : null
  const row = await settleFiringRow(tx, firingId, { error, recorded: outcome !== 'unneeded' })
  if (!row || outcome === 'unneeded') return
  const { memory_rule_id, generation_id } = row
  if (!error) return void (await resetFailures(tx, memory_rule_id))
  const failures = await countHandlerFailure(tx, memory_rule_id)
  if (failures % FAILURES_BEFORE_EXCEPTION !== 0) return
  const rule = await memoryRuleKind.find(tx, memory_rule_id)
  if (!rule) return
  fileExceptionInTx(tx, {
    project_id: rule.project_id,
    kind: 'memory_rule_failed',
    title: `Memory rule failed ${failures} times in a row: ${error.code}`,
    detail: { memory_rule_id, memory_store_id: rule.memory_store_id, generation_id, code: error.code, failures },
    dedup_key: memory_rule_id,
    agent_id: rule.agent_id,
  })
}
