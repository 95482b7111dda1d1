import { LRUCache } from 'lru-cache'
import { AppError } from '../../core/api/errors.ts'
import { isTransient } from '../../core/db/database-errors.ts'
import { withoutTenantLimit } from '../../core/db/tenant-context.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import { boundsName } from '../../core/iam/authority.ts'
import type { Caller } from '../../core/iam/caller.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { effectiveCaller } from '../../identity/principals.ts'
import { callTool, openCall } from '../tools/call.ts'
import { toolsOfIds } from '../tools/store.ts'
import type { GuardrailRule } from './document.ts'
import type { Evaluation } from './model.ts'

type Context = Record<string, unknown>

/** Bytes of answers that a process keeps. */
const MAX_BYTES = 16 * 1024 * 1024

const answersOf = processSingleton(({ config }) => ({
  kept: new LRUCache<string, { context: Context }>({
    ttl: Math.max(1, config.GUARDRAIL_CONTEXT_TTL_MS),
    maxSize: MAX_BYTES,
    sizeCalculation: ({ context }) => JSON.stringify(context).length + 1,
  }),
  /** Calls that ask for the same at once share one. */
  underWay: new Map<string, Promise<Context | null>>(),
}))

type Given = { guardrail_context: Context | null; caller: () => Promise<Caller | null> }

export type GuardrailContext = { context: Context | null; source: Evaluation['context_source']; failed: boolean }

/** The `context` that a rule is applied with: what the caller gave, and what the context tool answers. */
export function guardrailContext(
  services: Services,
  rule: GuardrailRule,
  given: Given,
): GuardrailContext | Promise<GuardrailContext> {
  const { guardrail_context } = given
  if (rule.context_tool_id !== null && rule.readsContext) return withAnswer(services, rule, given)
  return { context: guardrail_context, source: guardrail_context ? 'caller' : 'none', failed: false }
}

async function withAnswer(services: Services, rule: GuardrailRule, given: Given): Promise<GuardrailContext> {
  const { guardrail_context } = given
  const answer = await answerOf(services, rule, given.caller)
  if (!answer) return { context: null, source: 'none', failed: true }
  if (rule.context_mode === 'replace' || !guardrail_context) return { context: answer, source: 'tool', failed: false }
  return { context: { ...guardrail_context, ...answer }, source: 'merged', failed: false }
}

/** What the context tool answers a principal, from a short memory if it is there; null when it does not give an object. */
async function answerOf(
  services: Services,
  rule: GuardrailRule,
  caller: () => Promise<Caller | null>,
): Promise<Context | null> {
  const { kept, underWay } = answersOf(services)
  const by = await actingFor(services, rule, caller)
  const { credential, principal } = by ?? {}
  // What narrows the principal may hide things from it.
  const bounds = by && boundsName(by)
  const key = [rule.guardrail_id, rule.context_tool_id, credential?.id, principal?.type, principal?.id, bounds].join(
    ' ',
  )
  const known = kept.get(key)
  if (known) return known.context
  const asked = underWay.get(key) ?? withoutTenantLimit(() => ask(services, rule, by))
  if (!underWay.has(key)) {
    underWay.set(key, asked)
    const over = () => underWay.delete(key)
    asked.then(over, over)
    const answer = await asked
    if (answer && services.config.GUARDRAIL_CONTEXT_TTL_MS > 0) kept.set(key, { context: answer })
  }
  return asked
}

/** As whom the context tool of a guardrail is called: whoever the judged call acts as, within the rights of its author. */
async function actingFor(services: Services, rule: GuardrailRule, caller: Given['caller']): Promise<Caller | null> {
  const by = await caller()
  const author = rule.row?.author ?? null
  return by && effectiveCaller(services, by, rule.project_id, { id: rule.guardrail_id, author })
}

async function ask(services: Services, rule: GuardrailRule, caller: Caller | null): Promise<Context | null> {
  const { guardrail_id, context_tool_id, project_id } = rule
  const started = performance.now()
  let outcome = 'no_object'
  try {
    const [tool] = await toolsOfIds(services.pool, project_id, [context_tool_id as string])
    if (!tool) throw new AppError('TOOL_NOT_FOUND', { meta: { id: context_tool_id } })
    const call = openCall(services, {
      caller: async () => caller,
      timeoutMs: services.config.GUARDRAIL_CONTEXT_TIMEOUT_MS,
      judged: 'throughout',
      reading: true,
      metering: { source: 'guardrail', record: null },
    })
    const answer = await callTool(services, tool, call)
    if (!isObject(answer)) return null
    outcome = 'answered'
    return answer
  } catch (error) {
    // A call is not judged without facts that are there.
    if (isTransient(error)) throw error
    outcome = error instanceof AppError ? error.code : 'INTERNAL_ERROR'
    if (!(error instanceof AppError)) services.log.error({ err: error, guardrail_id }, 'context tool failed')
    return null
  } finally {
    const ms = Math.round(performance.now() - started)
    services.log.info({ guardrail_id, tool_id: context_tool_id, project_id, outcome, ms }, 'context of a guardrail')
  }
}
