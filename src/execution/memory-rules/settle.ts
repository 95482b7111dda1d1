import { fileExceptionInTx } from '../../control/exceptions/file-exception.ts'
import type { RecordedFailure } from '../../core/api/errors.ts'
import { storableValue } from '../../core/api/storable-text.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { TurnOwner } from '../generations/loop/turn-owner.ts'
import { factsOfText } from './facts.ts'
import { memoryRuleKind } from './model.ts'
import { memoryRuleQueue } from './queue.ts'
import { MEMORY_RULE_SOURCE } from './rule-hook.ts'
import {
  countHandlerFailure,
  lockFiringOfHandler,
  type RuleFiring,
  rescheduleHandler,
  resetFailures,
  settleRow,
  storeHandlerAnswer,
} from './store.ts'

/** Delays before the second and the third try of a handler. */
export const RETRY_MS = [10_000, 60_000]

/** Failed firings of a rule, one after the other, that somebody should look at. */
const ALARMING = 3

/** Failures of a provider or a tool that another try may not meet: not those that say what is wrong with the rule. */
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

/** How long to wait before a handler is asked again; null when that is not worth while any more. */
export const handlerRetryDelay = ({ code }: RecordedFailure, failures: number): number | null =>
  TRANSIENT.has(code) ? (RETRY_MS[failures] ?? null) : null

/** How a firing ends: with its facts, with a failure, or because there is nothing to look at any more. */
export type RuleFiringEnd = 'done' | 'unneeded' | { error: RecordedFailure }

/**
 * Ends a firing, unless it has ended; the caller holds its lock. Its counts are recorded on the turn. Every third failure of
 * a rule in a row is filed for somebody to look at.
 */
export async function settleRuleFiring(tx: Tx, firingId: string, end: RuleFiringEnd): Promise<void> {
  const error = typeof end === 'object' ? (storableValue(end.error) as RecordedFailure) : null
  const row = await settleRow(tx, firingId, { error, recorded: end !== 'unneeded' })
  if (!row || end === 'unneeded') return
  const { memory_rule_id, generation_id } = row
  if (!error) return void (await resetFailures(tx, memory_rule_id))
  const failures = await countHandlerFailure(tx, memory_rule_id)
  if (failures % ALARMING !== 0) return
  const rule = await memoryRuleKind.find(tx, memory_rule_id)
  if (!rule) return
  fileExceptionInTx(tx, {
    project_id: rule.project_id,
    kind: 'memory_rule_failed',
    title: `A memory rule failed ${failures} times in a row: ${error.code}`,
    detail: { memory_rule_id, memory_store_id: rule.memory_store_id, generation_id, code: error.code, failures },
    dedup_key: memory_rule_id,
    agent_id: rule.agent_id,
  })
}

const messageOf = ({ id, generation_id, project_id }: RuleFiring) => ({ firing_id: id, generation_id, project_id })

/** The turn of a handler hands its answer to the firing that waits for it, whoever ends the turn. */
export const handlingTurns: TurnOwner = {
  source: MEMORY_RULE_SOURCE,
  async settled(tx, { id }, { status, content, error }) {
    const firing = await lockFiringOfHandler(tx, id)
    if (!firing) return
    if (status === 'completed') {
      await storeHandlerAnswer(tx, firing.id, factsOfText(content ?? ''))
      tx.send(memoryRuleQueue, messageOf(firing))
    } else await handlerFailed(tx, firing, error ?? UNKNOWN)
  },
}

/** Has a handler asked again whose turn failed or is gone, or ends the firing; under its lock. */
export async function handlerFailed(tx: Tx, firing: RuleFiring, error: RecordedFailure): Promise<void> {
  const delay = handlerRetryDelay(error, firing.failures)
  if (delay === null) return settleRuleFiring(tx, firing.id, { error })
  await rescheduleHandler(tx, firing.id, delay)
  tx.send(memoryRuleQueue, messageOf(firing), { startAfter: new Date(Date.now() + delay) })
}

const UNKNOWN: RecordedFailure = { code: 'GENERATION_FAILED', message: 'The turn failed' }
