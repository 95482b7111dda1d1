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
import { handlerFailed, handlerRetryDelay, settleRuleFiring } from './settle.ts'
import { lockFiring, type RuleFiring, type RuleFiringClaim, recheckLater, ruleFiringWork } from './store.ts'

/** How long the turn of a handler may be past its time before the firing looks for it. */
const GRACE_MS = 60_000

/** How long the lease of a worker is, and how often it renews it. */
const ownLease = ({ config }: Pick<Services, 'config'>): Lease => leaseTimings(config.GENERATION_LEASE_SECONDS * 1000)

type Taken = { claim: RuleFiringClaim; firing: RuleFiring; rule: MemoryRuleRow; turn: GenerationRow }
type Held = Taken & { services: Services; hold: ActiveClaim<RuleFiringClaim> }

/**
 * Brings a firing on: asks the handler of the rule, unless that has answered, and writes the facts. Throws what could not
 * be recorded, and HandBack when the worker stops.
 */
export async function processRuleFiring(message: RuleFiringMessage, context: JobContext): Promise<void> {
  const { services } = context
  const taken = await services.write(tx => take(tx, services, message))
  if (!taken) return
  const { claim, firing, rule } = taken
  await processClaim(context, {
    what: 'memory rule',
    ids: { firing_id: firing.id, memory_rule_id: rule.id, generation_id: firing.generation_id },
    attempts: ruleFiringWork,
    claim,
    lease: ownLease(services),
    lock: tx => lockFiring(tx, firing.id),
    work: hold => runHandler({ ...taken, services, hold }),
    fail: error => fail(services, taken, message, error),
  })
}

/** Claims a firing that there is something to do for. One that another worker holds is looked at when its lease is over. */
async function take(tx: Tx, services: Services, message: RuleFiringMessage): Promise<Taken | null> {
  const firing = await lockFiring(tx, message.firing_id)
  if (!firing || firing.state === 'done' || firing.state === 'failed') return null
  if (firing.state === 'asked') {
    if (firing.is_due) await pollHandlerTurn(tx, firing)
    return null
  }
  const rule = await memoryRuleKind.find(tx, firing.memory_rule_id)
  const turn = await generationKind.find(tx, firing.generation_id)
  if (!rule?.enabled || !turn || turn.content_redacted_at !== null) {
    // A rule that was switched off meanwhile may have lost its handler; of an erased turn nothing is to be kept.
    if (firing.state === 'queued') await settleRuleFiring(tx, firing.id, 'unneeded')
    return null
  }
  // Taken up again once the project is resumed; what has begun goes on.
  if (firing.paused && firing.state === 'queued') return null
  const named = { entity: firing.generation_id, id: firing.id }
  const claim = await claimOrReschedule(tx, ruleFiringWork, named, ownLease(services), memoryRuleQueue, message)
  if (claim === 'held') return null
  if (claim) return { claim, firing, rule, turn }
  await settleRuleFiring(tx, firing.id, { error: LOST })
  return null
}

const LOST: RecordedFailure = {
  code: 'GENERATION_FAILED',
  message: 'The workers of the firing were lost one after the other',
}

/** The turn of a handler should have ended: where it is gone with its agent, nobody says so. */
async function pollHandlerTurn(tx: Tx, firing: RuleFiring): Promise<void> {
  const turn = firing.handler_generation_id && (await generationKind.find(tx, firing.handler_generation_id))
  if (turn) await recheckLater(tx, firing.id, GRACE_MS)
  else await handlerFailed(tx, firing, { code: 'AGENT_NOT_FOUND', message: 'The agent was deleted while it was asked' })
}

async function runHandler(held: Held): Promise<AttemptOutcome> {
  const { services, claim, rule, hold, firing } = held
  await injectFault(services, 'firing_claimed')
  let { facts } = claim
  if (facts === null) {
    if (rule.agent_id !== null) {
      const handler_generation_id = await ask(held)
      return { outcome: handler_generation_id === null ? 'chain_limit' : 'asked', handler_generation_id }
    }
    facts = await requestHandlerFacts(services, rule, held.turn, {
      authority: rule.authority,
      key: firing.id,
      call: `${firing.id}:${claim.claims}`,
      signal: hold.signal,
    })
    await injectFault(services, 'firing_answered')
    const kept = sql.fragment`facts = ${jsonb(facts)}, candidates = ${facts.length}`
    const keep = () => ruleFiringWork.set(services.pool, claim, kept)
    if (!(await retryWhileUnavailable(keep, hold))) throw new ClaimLostError()
  }
  await injectFault(services, 'firing_facts')
  for (const [index, fact] of facts.entries()) {
    if (index < claim.written) continue
    hold.signal.throwIfAborted()
    await write(held, fact)
    await injectFault(services, 'firing_fact_written')
  }
  await hold.write(async tx => {
    await hold.guard(tx)
    await settleRuleFiring(tx, firing.id, 'done')
  })
  return { outcome: 'done', facts: facts.length }
}

/**
 * Has the agent of a rule asked by a turn of its own: its end brings the answer, and nobody waits for it. Null where the
 * chain of the turn has no room, which ends the firing.
 */
const ask = ({ services, claim, firing, rule, turn, hold }: Held): Promise<string | null> =>
  hold.write(async tx => {
    await hold.guard(tx)
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

/** Writes one fact and marks it, both or neither; one that cannot be written is counted, and others go on. */
async function write({ services, claim, rule, turn, hold }: Held, fact: ExtractedFact): Promise<void> {
  const marked = async (db: Parameters<typeof ruleFiringWork.set>[0], column: string) => {
    const counter = sql.identifier([column])
    const counts = sql.fragment`written = written + 1, ${counter} = ${counter} + 1`
    if (!(await ruleFiringWork.set(db, claim, counts))) throw new ClaimLostError()
  }
  try {
    await writeFact(services, factFromTurn(rule, turn, fact), {
      within: (tx, { entry }) => marked(tx, entry.action),
      admitted: true,
    })
  } catch (error) {
    if (error instanceof ClaimLostError || hold.signal.aborted || isTransient(error)) throw error
    services.log.warn({ err: error, memory_rule_id: rule.id, generation_id: turn.id }, 'fact not written')
    await marked(services.pool, 'failed')
  }
}

/** Has the handler asked again after a failure that may pass, or ends the firing with it. */
async function fail(
  services: Services,
  { claim, firing, rule }: Taken,
  message: RuleFiringMessage,
  error: unknown,
): Promise<AttemptOutcome> {
  if (!(error instanceof AppError)) services.log.error({ err: error, memory_rule_id: rule.id }, 'memory rule')
  // Nothing is started in a paused project; the sweep finds it when that has been resumed.
  const paused = error instanceof AppError && error.code === 'PROJECT_PAUSED'
  if (paused && (await ruleFiringWork.requeue(services.pool, claim, { delayMs: 0, failed: false })))
    return { outcome: 'paused' }
  const failure = handlerFailure(error)
  const delay = handlerRetryDelay(failure, claim.failures)
  return services.write(async tx => {
    if (!(await lockFiring(tx, firing.id))) return { outcome: 'superseded' }
    if (delay !== null) {
      if (!(await ruleFiringWork.requeue(tx, claim, { delayMs: delay, failed: true }))) return { outcome: 'superseded' }
      tx.send(memoryRuleQueue, message, { startAfter: new Date(Date.now() + delay) })
      return { outcome: 'failed', code: failure.code, decision: `retry in ${delay} ms` }
    }
    if (!(await ruleFiringWork.set(tx, claim, sql.fragment`heartbeat_at = now()`))) return { outcome: 'superseded' }
    await settleRuleFiring(tx, firing.id, { error: failure })
    return { outcome: 'failed', code: failure.code, decision: 'given up' }
  })
}

/** Ends a firing that no live worker holds, for a message that failed for the last time. */
export async function abandonRuleFiring(tx: Tx, { firing_id }: RuleFiringMessage, error: unknown): Promise<void> {
  const firing = await lockFiring(tx, firing_id)
  if (firing && (firing.state === 'queued' || (firing.state === 'running' && firing.is_due)))
    await settleRuleFiring(tx, firing_id, { error: handlerFailure(error) })
}
