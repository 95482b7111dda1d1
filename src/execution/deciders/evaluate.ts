import { recordUsage, type UsageDraft } from '../../control/usage/meter.ts'
import { AppError, raise, recordedFailure } from '../../core/api/errors.ts'
import { kinds } from '../../core/api/kind.ts'
import { isTransient } from '../../core/db/database-errors.ts'
import { sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { requirePermitted } from '../../core/iam/access.ts'
import type { JobContext } from '../../core/jobs/handler.ts'
import { ClaimLostError, claimOrReschedule, type Lease, leaseTimings, processClaim } from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { openJson } from '../../core/secrets/json.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import { findAgentVersion } from '../agents/served-version.ts'
import { createTurn } from '../generations/request/create.ts'
import { callTool, openCall } from '../tools/call.ts'
import { lostCall } from '../tools/metering.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'
import { requireCallableBackend } from './backend.ts'
import { decisionSeal } from './create-decisions.ts'
import { type DecisionRow, decisionKind, isDecisionSettled } from './model.ts'
import { answersSchema, questionMessage } from './prompt.ts'
import type { DecisionAnswer } from './questions.ts'
import { type DecisionMessage, decisionQueue } from './queue.ts'
import { DECIDER_SOURCE, type End, settleDecision } from './settle.ts'
import { type DecisionClaim, decisionAttempts, endAttempt, findClaimed, hasCalled } from './store.ts'
import { toolAnswers } from './tool-answers.ts'

/** How long the lease of a worker is, and how often it renews it. */
const ownLease = ({ config }: Pick<Services, 'config'>): Lease => leaseTimings(config.DECISION_LEASE_SECONDS * 1000)

/**
 * Makes a decision: has an agent asked by a turn of its own, which settles the decision, or calls a tool and settles it.
 * Throws what could not be recorded, and HandBack when the worker stops.
 */
export async function processDecision(message: DecisionMessage, context: JobContext): Promise<void> {
  const decision = await decisionKind.find(context.services.pool, message.decision_id)
  if (!decision || isDecisionSettled(decision)) return
  if (decision.agent_id !== null) await askAgent(message, context)
  else await askTool(message, context)
}

/** The input of a decision. Raises what makes it unreadable. */
function inputOf(services: Services, decision: DecisionRow, sealed: string | null): unknown {
  if (sealed === null) return raise('GENERATION_CONTENT_UNAVAILABLE', { message: 'The input of the decision is gone' })
  return openJson(services, sealed, decisionSeal(decision), 'The input of the decision')
}

/** Makes the turn of an agent, unless it is made: with the state of the decision and without its attempt, or not at all. */
async function askAgent({ decision_id }: DecisionMessage, { services, log }: JobContext): Promise<void> {
  try {
    const made = await services.write(async tx => {
      const decision = await decisionKind.find(tx, decision_id, true)
      if (decision?.status !== 'queued') return null
      const held = await findClaimed(tx, decision_id)
      // Taken up again once the project is resumed.
      if (!held || held.paused) return null
      const { project_id, asked, agent_id, agent_version } = decision
      const agent = await findAgentVersion(tx, agent_id as string, agent_version as number)
      if (!agent) return raise('AGENT_NOT_FOUND', { meta: { id: agent_id } })
      const { generation_id } = await createTurn(tx, services, {
        project_id,
        agent_id: agent.id,
        agent_version: agent_version as number,
        messages: [questionMessage(asked, inputOf(services, decision, held.sealed))],
        overrides: { output_schema: answersSchema(asked) },
        source: DECIDER_SOURCE,
        authority: held.principal,
        permission: held.permission,
        streamed: false,
        shape: 'agent',
      })
      await decisionKind.update(tx, decision_id, { status: 'running', generation_id })
      await endAttempt(tx, decision_id)
      return generation_id
    })
    if (made) log.info({ decision_id, generation_id: made, outcome: 'asked' }, 'decision')
  } catch (error) {
    if (!(error instanceof AppError) || error.code === 'SERVICE_NOT_READY' || isTransient(error)) throw error
    if (error.code === 'PROJECT_PAUSED') return
    await services.write(tx => settleDecision(tx, decision_id, { error: recordedFailure(error) }))
    log.info({ decision_id, outcome: 'failed', code: error.code, decision: 'given up' }, 'decision')
  }
}

/** Calls the tool of a decision and settles it, unless another worker does. */
async function askTool(message: DecisionMessage, context: JobContext): Promise<void> {
  const { services } = context
  const taken = await services.write(tx => take(tx, services, message))
  if (!taken) return
  const { claim, decision } = taken
  const used: UsageDraft[] = []
  const settle = async (tx: Tx, end: End) => {
    await settleClaimed(tx, claim, end)
    await recordUsage(services, used, tx)
  }
  await processClaim(context, {
    what: 'decision',
    ids: { decision_id: decision.id, project_id: decision.project_id },
    attempts: decisionAttempts,
    claim,
    lease: ownLease(services),
    lock: tx => decisionKind.find(tx, decision.id, true),
    async work(hold) {
      await injectFault(services, 'decision_claimed')
      const answers = await answersOf(services, taken, used, hold.signal)
      await injectFault(services, 'decision_answered')
      await hold.write(tx => settle(tx, { answers }))
      return { outcome: 'completed' }
    },
    async fail(error) {
      if (!(error instanceof AppError)) services.log.error({ err: error, decision_id: decision.id }, 'decision')
      const failure = recordedFailure(error)
      await services.write(tx => settle(tx, { error: failure }))
      return { outcome: 'failed', code: failure.code, decision: 'given up' }
    },
  })
}

type Taken = { claim: DecisionClaim; decision: DecisionRow; sealed: string | null }

/** Claims the attempt of a decision. One that another worker holds is looked at again when its lease is over. */
async function take(tx: Tx, services: Services, message: DecisionMessage): Promise<Taken | null> {
  const named = { entity: message.decision_id, id: message.attempt_id }
  const decision = await decisionKind.find(tx, named.entity, true)
  const held = decision && (await findClaimed(tx, decision.id))
  if (!held) return null
  // Taken up again once the project is resumed; what has begun goes on.
  if (held.paused && decision.status === 'queued') return null
  const claim = await claimOrReschedule(tx, decisionAttempts, named, ownLease(services), decisionQueue, message)
  if (claim === 'held') return null
  if (!claim) {
    await abandonDecision(tx, services, message, new AppError('DECISION_INTERRUPTED', { message: LOST }))
    return null
  }
  await decisionKind.update(tx, decision.id, { status: 'running' })
  return { claim, decision, sealed: held.sealed }
}

/** The use of a call that a lost worker has made; what it was given is not looked at again. */
const lostCallOf = ({ id, project_id, tool_id }: DecisionRow, tool: ToolRow | null): UsageDraft =>
  lostCall(tool ?? { id: tool_id, name: 'decider', project_id }, null, { source: 'decider', record: id }, null)

const LOST = 'The workers of the decision were lost one after the other'

/** Ends a decision that no live worker holds with a failure. */
export async function abandonDecision(
  tx: Tx,
  services: Services,
  message: DecisionMessage,
  error: unknown,
): Promise<void> {
  const { decision_id, attempt_id } = message
  const decision = await decisionKind.find(tx, decision_id, true)
  if (!decision) return
  const called = await hasCalled(tx, decision_id)
  if (!(await decisionAttempts.endIdle(tx, { entity: decision_id, id: attempt_id }))) return
  if (called)
    await recordUsage(services, [lostCallOf(decision, await toolKind.find(tx, decision.tool_id as string))], tx)
  await settleDecision(tx, decision_id, { error: recordedFailure(error) })
}

/** Ends a decision that this worker holds. Raises Superseded when it does not. */
async function settleClaimed(tx: Tx, claim: DecisionClaim, end: End): Promise<void> {
  await decisionKind.find(tx, claim.entity, true)
  if (!(await decisionAttempts.end(tx, claim))) throw new ClaimLostError()
  await settleDecision(tx, claim.entity, end)
}

/**
 * Calls the tool in the name of who asked for the decision, as long as that may be done: a call whose worker was lost is
 * repeated only for a tool that says that this has the effect of one.
 * @throws DECISION_INTERRUPTED, TOOL_NOT_FOUND, FORBIDDEN, DECISION_ANSWER_INVALID, what the call fails with, Superseded
 */
async function answersOf(
  services: Services,
  { claim, decision, sealed }: Taken,
  used: UsageDraft[],
  signal: AbortSignal,
): Promise<DecisionAnswer[]> {
  const { id, project_id, asked } = decision
  const { principal, permission } = claim
  const tool = await toolKind.find(services.pool, decision.tool_id as string)
  if (claim.called && !tool?.idempotent) {
    used.push(lostCallOf(decision, tool))
    return raise('DECISION_INTERRUPTED')
  }
  if (!tool) return raise('TOOL_NOT_FOUND', { meta: { id: decision.tool_id } })
  requireCallableBackend(tool)
  const input = inputOf(services, decision, sealed)
  const caller = await callerForPrincipal(services, principal, project_id)
  const target = { kind: kinds.get(permission.kind), row: { id: permission.id, project_id } }
  requirePermitted(caller, permission.action, target)
  if (!(await decisionAttempts.set(services.pool, claim, sql.fragment`called = true`))) throw new ClaimLostError()
  const call = openCall(services, {
    input: { input, questions: asked },
    caller: () => callerForPrincipal(services, principal, project_id),
    idempotencyKey: id,
    metering: { source: 'decider', record: id, add: draft => void used.push(draft) },
    signal,
  })
  return toolAnswers(asked, await callTool(services, tool, call))
}
