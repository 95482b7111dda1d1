import { timeIn } from '#core/base/clock.ts'
import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { jsonb, type Queryable, sql } from '#core/db/sql.ts'
import type { AttemptFields, WorkAttempt } from '#core/work/attempt.ts'
import { ClaimLostError } from '#core/work/handler.ts'
import { MAX_MESSAGE_LEASE_SECONDS, work } from '#core/work/work.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import { writeFact } from '#memory/entries/write.ts'
import type { TurnOwner } from '../generations/loop/turn-owner.ts'
import { type GenerationRow, generationKind } from '../generations/model.ts'
import { factFromTurn } from './fact-provenance.ts'
import { type ExtractedFact, factsOfText, NO_FACTS } from './facts.ts'
import { createChainedHandlerTurn, handlerFailure, requestHandlerFacts, timeoutMs } from './handler-turn.ts'
import { MEMORY_RULE_SOURCE, type MemoryRuleRow, memoryRuleKind } from './model.ts'
import { handlerRetryDelay, RETRY_MS, settleRuleFiring } from './settle.ts'
import {
  type FiringWorkColumns,
  firingEntity,
  firingWorkColumns,
  lockFiringOfHandler,
  lockOverdueFiring,
  type RuleFiring,
  rescheduleFiring,
  rescheduleHandler,
  storeHandlerAnswer,
} from './store.ts'

/** Time after the deadline of a handler turn before the firing checks it. */
const GRACE_MS = 60_000

type FiringAttempt = WorkAttempt<RuleFiring, FiringWorkColumns>

/** Processes a firing: starts or calls the handler of the rule unless its facts are stored, and writes the facts. */
export const ruleFiringWork = work({
  name: 'memory_rule.fire',
  concern: 'generation',
  entity: firingEntity,
  table: firingEntity.table,
  entityColumn: 'id',
  columns: firingWorkColumns,
  ids: ({ id, memory_rule_id, generation_id }) => ({ firing_id: id, memory_rule_id, generation_id }),
  leaseSeconds: config => Math.min(config.GENERATION_LEASE_SECONDS, MAX_MESSAGE_LEASE_SECONDS),
  pausable: true,
  keepsRow: true,
  waitStates: ['asked'],
  retry: { attempts: RETRY_MS.length + 1, losses: 2, delayMs: failures => RETRY_MS[failures] },
  isFinal: error => handlerRetryDelay(handlerFailure(error), 0) === null,
  // Claimed again after the project is resumed.
  deferral: error => (error instanceof AppError && error.code === 'PROJECT_PAUSED' ? 0 : null),
  lostError: () => new AppError('GENERATION_FAILED', { message: 'Firing abandoned after too many lost workers' }),
  sweep: { seconds: config => config.GENERATION_SWEEP_SECONDS },
  onUnclaimed: ({ work_id }, { services }) =>
    services.write(async tx => {
      const firing = await lockOverdueFiring(tx, work_id)
      if (firing) await pollHandlerTurn(tx, firing)
    }),
  run: processFiring,
  async fail(tx, { entity, error }) {
    await settleRuleFiring(tx, entity.id, { error: handlerFailure(error) })
    return undefined
  },
})

const wakeFiring = (tx: Outbox, { id, project_id }: Pick<RuleFiring, 'id' | 'project_id'>, delayMs = 0): void =>
  ruleFiringWork.wake(tx, { entity: id, id, project_id }, delayMs > 0 ? { startAfter: timeIn(delayMs) } : {})

/** Sends the wake-ups of new firings. */
export const wakeFirings = (outbox: Outbox, projectId: string, ids: readonly string[]): void => {
  for (const id of ids) wakeFiring(outbox, { id, project_id: projectId })
}

/** Settles or continues a firing with the outcome of its handler turn. */
export const handlerTurnOwner: TurnOwner = {
  source: MEMORY_RULE_SOURCE,
  async settled(tx, { id }, { status, content, error }) {
    const firing = await lockFiringOfHandler(tx, id)
    if (!firing) return
    const facts = status === 'completed' ? factsOfText(content ?? '') : null
    if (facts) {
      await storeHandlerAnswer(tx, firing.id, facts)
      wakeFiring(tx, firing)
    } else await retryOrSettleFiring(tx, firing, error ?? (status === 'completed' ? UNREADABLE : UNKNOWN))
  },
}

const UNREADABLE: RecordedFailure = {
  code: 'OUTPUT_SCHEMA_VALIDATION_FAILED',
  message: NO_FACTS,
}
const UNKNOWN: RecordedFailure = { code: 'GENERATION_FAILED', message: 'Turn failed' }

/** Reschedules a firing whose handler turn failed or was deleted, or settles it; the caller has locked it. */
async function retryOrSettleFiring(tx: Tx, firing: RuleFiring, error: RecordedFailure): Promise<void> {
  const delay = handlerRetryDelay(error, firing.failures)
  if (delay === null) return settleRuleFiring(tx, firing.id, { error })
  await rescheduleHandler(tx, firing.id, delay)
  wakeFiring(tx, firing, delay)
}

/** Checks a handler turn that is past its deadline: a turn that was deleted with its agent settles nothing. */
async function pollHandlerTurn(tx: Tx, firing: RuleFiring): Promise<void> {
  const turn = firing.handler_generation_id && (await generationKind.find(tx, firing.handler_generation_id))
  if (turn) await rescheduleFiring(tx, firing.id, GRACE_MS)
  else
    await retryOrSettleFiring(tx, firing, {
      code: 'AGENT_NOT_FOUND',
      message: 'The agent was deleted during the firing',
    })
}

async function processFiring(attempt: FiringAttempt): Promise<AttemptFields> {
  const { services, entity: firing, claim, signal } = attempt
  const rule = await memoryRuleKind.find(services.pool, firing.memory_rule_id)
  const turn = await generationKind.find(services.pool, firing.generation_id)
  // A disabled rule may have lost its handler; an erased turn must leave no facts.
  if (!rule?.enabled || !turn || turn.content_redacted_at !== null) {
    await attempt.settle(tx => settleRuleFiring(tx, firing.id, 'unneeded'))
    return { outcome: 'unneeded' }
  }
  let { facts } = claim
  if (facts === null) {
    if (rule.agent_id !== null) return startHandlerTurn(attempt, rule, turn)
    facts = await requestHandlerFacts(services, rule, turn, {
      authority: rule.authority,
      key: firing.id,
      call: `${firing.id}:${claim.claims}`,
      signal,
    })
    await injectFault(services, 'firing_answered')
    const stored = sql.fragment`facts = ${jsonb(facts)}, candidates = ${facts.length}`
    await retryWhileUnavailable(() => attempt.set(services.pool, stored), { signal })
  }
  await injectFault(services, 'firing_facts')
  for (const [index, fact] of facts.entries()) {
    if (index < claim.written) continue
    signal.throwIfAborted()
    await writeFactOnce(attempt, rule, turn, fact)
    await injectFault(services, 'firing_fact_written')
  }
  await attempt.settle(tx => settleRuleFiring(tx, firing.id, 'done'))
  return { outcome: 'done', facts: facts.length }
}

/**
 * Starts a turn of the rule's agent, which delivers the facts when it settles, without a waiting worker. The chain limit
 * settles the firing.
 */
async function startHandlerTurn(
  { services, entity: firing, suspend }: FiringAttempt,
  rule: MemoryRuleRow,
  turn: GenerationRow,
): Promise<AttemptFields> {
  let handler_generation_id: string | null = null
  await suspend(async tx => {
    handler_generation_id = await createChainedHandlerTurn(tx, services, rule, turn, { authority: rule.authority })
    if (handler_generation_id === null) {
      await settleRuleFiring(tx, firing.id, 'unneeded')
      return null
    }
    const until = sql.fragment`now() + ${timeoutMs(services) + GRACE_MS} * interval '1 ms'`
    return sql.fragment`state = 'asked', handler_generation_id = ${handler_generation_id}, due_at = ${until}`
  })
  return { outcome: handler_generation_id === null ? 'chain_limit' : 'asked', handler_generation_id }
}

/**
 * Writes one fact and counts it in the same transaction. A fact that cannot be written is counted as failed and does
 * not stop the others.
 */
async function writeFactOnce(
  { services, set, signal }: FiringAttempt,
  rule: MemoryRuleRow,
  turn: GenerationRow,
  fact: ExtractedFact,
): Promise<void> {
  const countFact = (db: Queryable, column: string): Promise<void> => {
    const counter = sql.identifier([column])
    return set(db, sql.fragment`written = written + 1, ${counter} = ${counter} + 1`)
  }
  try {
    await writeFact(services, factFromTurn(rule, turn, fact), {
      within: (tx, { entry }) => countFact(tx, entry.action),
      admitted: true,
    })
  } catch (error) {
    if (error instanceof ClaimLostError || signal.aborted || isTransient(error)) throw error
    services.log.warn({ err: error, memory_rule_id: rule.id, generation_id: turn.id }, 'fact not written')
    await countFact(services.pool, 'failed')
  }
}
