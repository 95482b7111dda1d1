import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import { isTransient } from '../../core/db/database-errors.ts'
import { retryWhileUnavailable } from '../../core/db/retry.ts'
import { jsonb, sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { JobContext } from '../../core/jobs/handler.ts'
import {
  type ActiveClaim,
  type AttemptOutcome,
  ClaimLostError,
  claimOrReschedule,
  type Lease,
  leaseTimings,
  processClaim,
} from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { writeFact } from '../../memory/entries/write.ts'
import { type GenerationRow, generationKind } from '../generations/model.ts'
import { factFromTurn } from './fact-provenance.ts'
import type { ExtractedFact } from './facts.ts'
import { createChainedHandlerTurn, handlerFailure, requestHandlerFacts, timeoutMs } from './handler-turn.ts'
import { type MemoryRuleRow, memoryRuleKind } from './model.ts'
import { memoryRuleQueue, type RuleFiringMessage } from './queue.ts'
import { handlerRetryDelay, retryOrSettleFiring, settleRuleFiring } from './settle.ts'
import { lockFiring, type RuleFiring, type RuleFiringClaim, rescheduleFiring, ruleFiringWork } from './store.ts'

/** Time after the deadline of a handler turn before the firing checks it. */
const GRACE_MS = 60_000

/** Lease duration and renewal interval of a worker. */
const ownLease = ({ config }: Pick<Services, 'config'>): Lease => leaseTimings(config.GENERATION_LEASE_SECONDS * 1000)

type ClaimedFiring = { claim: RuleFiringClaim; firing: RuleFiring; rule: MemoryRuleRow; turn: GenerationRow }
type LeasedFiring = ClaimedFiring & { services: Services; lease: ActiveClaim<RuleFiringClaim> }

/**
 * Processes a firing: starts or calls the handler of the rule unless its facts are stored, and writes the facts. Throws
 * errors that could not be recorded, and HandBack when the worker stops.
 */
export async function processRuleFiring(message: RuleFiringMessage, context: JobContext): Promise<void> {
  const { services } = context
  const claimed = await services.write(tx => claimFiring(tx, services, message))
  if (!claimed) return
  const { claim, firing, rule } = claimed
  await processClaim(context, {
    what: 'memory rule',
    ids: { firing_id: firing.id, memory_rule_id: rule.id, generation_id: firing.generation_id },
    attempts: ruleFiringWork,
    claim,
    lease: ownLease(services),
    lock: tx => lockFiring(tx, firing.id),
    work: lease => runHandler({ ...claimed, services, lease }),
    fail: error => retryOrAbandon(services, claimed, message, error),
  })
}

/**
 * Claims a firing that has work to do; if another worker has a valid lease, schedules another attempt for its expiry.
 */
async function claimFiring(tx: Tx, services: Services, message: RuleFiringMessage): Promise<ClaimedFiring | null> {
  const firing = await lockFiring(tx, message.firing_id)
  if (!firing || firing.state === 'done' || firing.state === 'failed') return null
  if (firing.state === 'asked') {
    if (firing.is_due) await pollHandlerTurn(tx, firing)
    return null
  }
  const rule = await memoryRuleKind.find(tx, firing.memory_rule_id)
  const turn = await generationKind.find(tx, firing.generation_id)
  if (!rule?.enabled || !turn || turn.content_redacted_at !== null) {
    // A disabled rule may have lost its handler; an erased turn must leave no facts.
    if (firing.state === 'queued') await settleRuleFiring(tx, firing.id, 'unneeded')
    return null
  }
  // Claimed again after the project is resumed; a running firing continues.
  if (firing.paused && firing.state === 'queued') return null
  const ref = { entity: firing.generation_id, id: firing.id }
  const claim = await claimOrReschedule(tx, ruleFiringWork, ref, ownLease(services), memoryRuleQueue, message)
  if (claim === 'held') return null
  if (claim) return { claim, firing, rule, turn }
  await settleRuleFiring(tx, firing.id, { error: WORKERS_LOST })
  return null
}

const WORKERS_LOST: RecordedFailure = {
  code: 'GENERATION_FAILED',
  message: 'Firing abandoned after too many lost workers',
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

async function runHandler(leased: LeasedFiring): Promise<AttemptOutcome> {
  const { services, claim, rule, lease, firing } = leased
  await injectFault(services, 'firing_claimed')
  let { facts } = claim
  if (facts === null) {
    if (rule.agent_id !== null) {
      const handler_generation_id = await startHandlerTurn(leased)
      return { outcome: handler_generation_id === null ? 'chain_limit' : 'asked', handler_generation_id }
    }
    facts = await requestHandlerFacts(services, rule, leased.turn, {
      authority: rule.authority,
      key: firing.id,
      call: `${firing.id}:${claim.claims}`,
      signal: lease.signal,
    })
    await injectFault(services, 'firing_answered')
    const storedFacts = sql.fragment`facts = ${jsonb(facts)}, candidates = ${facts.length}`
    const storeFacts = () => ruleFiringWork.set(services.pool, claim, storedFacts)
    if (!(await retryWhileUnavailable(storeFacts, lease))) throw new ClaimLostError()
  }
  await injectFault(services, 'firing_facts')
  for (const [index, fact] of facts.entries()) {
    if (index < claim.written) continue
    lease.signal.throwIfAborted()
    await writeFactOnce(leased, fact)
    await injectFault(services, 'firing_fact_written')
  }
  await lease.write(async tx => {
    await lease.guard(tx)
    await settleRuleFiring(tx, firing.id, 'done')
  })
  return { outcome: 'done', facts: facts.length }
}

/**
 * Starts a turn of the rule's agent, which delivers the facts when it settles, without a waiting worker. Returns null
 * at the chain limit, which settles the firing.
 */
const startHandlerTurn = ({ services, claim, firing, rule, turn, lease }: LeasedFiring): Promise<string | null> =>
  lease.write(async tx => {
    await lease.guard(tx)
    const id = await createChainedHandlerTurn(tx, services, rule, turn, { authority: rule.authority })
    if (id === null) {
      await settleRuleFiring(tx, firing.id, 'unneeded')
      return null
    }
    const until = sql.fragment`now() + ${timeoutMs(services) + GRACE_MS} * interval '1 ms'`
    const waiting = sql.fragment`state = 'asked', handler_generation_id = ${id}, due_at = ${until}`
    if (!(await ruleFiringWork.set(tx, claim, waiting))) throw new ClaimLostError()
    return id
  })

/**
 * Writes one fact and counts it in the same transaction. A fact that cannot be written is counted as failed and does
 * not stop the others.
 */
async function writeFactOnce({ services, claim, rule, turn, lease }: LeasedFiring, fact: ExtractedFact): Promise<void> {
  const countFact = async (db: Parameters<typeof ruleFiringWork.set>[0], column: string) => {
    const counter = sql.identifier([column])
    const counts = sql.fragment`written = written + 1, ${counter} = ${counter} + 1`
    if (!(await ruleFiringWork.set(db, claim, counts))) throw new ClaimLostError()
  }
  try {
    await writeFact(services, factFromTurn(rule, turn, fact), {
      within: (tx, { entry }) => countFact(tx, entry.action),
      admitted: true,
    })
  } catch (error) {
    if (error instanceof ClaimLostError || lease.signal.aborted || isTransient(error)) throw error
    services.log.warn({ err: error, memory_rule_id: rule.id, generation_id: turn.id }, 'fact not written')
    await countFact(services.pool, 'failed')
  }
}

/** Reschedules the firing after a transient failure, or settles it as failed. */
async function retryOrAbandon(
  services: Services,
  { claim, firing, rule }: ClaimedFiring,
  message: RuleFiringMessage,
  error: unknown,
): Promise<AttemptOutcome> {
  if (!(error instanceof AppError))
    services.log.error({ err: error, memory_rule_id: rule.id }, 'memory rule firing failed')
  // Requeued until the project is resumed; the sweep then finds it.
  const paused = error instanceof AppError && error.code === 'PROJECT_PAUSED'
  if (paused && (await ruleFiringWork.requeue(services.pool, claim, { delayMs: 0, failed: false })))
    return { outcome: 'paused' }
  const failure = handlerFailure(error)
  const delay = handlerRetryDelay(failure, claim.failures)
  return services.write(async tx => {
    if (!(await lockFiring(tx, firing.id))) return { outcome: 'claim_lost' }
    if (delay !== null) {
      if (!(await ruleFiringWork.requeue(tx, claim, { delayMs: delay, failed: true }))) return { outcome: 'claim_lost' }
      tx.send(memoryRuleQueue, message, { startAfter: new Date(Date.now() + delay) })
      return { outcome: 'failed', code: failure.code, decision: `retry in ${delay} ms` }
    }
    if (!(await ruleFiringWork.set(tx, claim, sql.fragment`heartbeat_at = now()`))) return { outcome: 'claim_lost' }
    await settleRuleFiring(tx, firing.id, { error: failure })
    return { outcome: 'failed', code: failure.code, decision: 'abandoned' }
  })
}

/** Settles a firing without a live worker as failed, for a message that exhausted its retries. */
export async function abandonRuleFiring(tx: Tx, { firing_id }: RuleFiringMessage, error: unknown): Promise<void> {
  const firing = await lockFiring(tx, firing_id)
  if (firing && (firing.state === 'queued' || (firing.state === 'running' && firing.is_due)))
    await settleRuleFiring(tx, firing_id, { error: handlerFailure(error) })
}
