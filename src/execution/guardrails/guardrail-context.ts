import { LRUCache } from 'lru-cache'
import { AppError } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { withoutTenantLimit } from '#core/db/tenant-context.ts'
import { boundsKey } from '#core/iam/authority.ts'
import type { Caller } from '#core/iam/caller.ts'
import { effectiveCaller } from '#identity/principals/principals.ts'
import { callTool, openCall } from '../tools/call.ts'
import { listToolsById } from '../tools/store.ts'
import type { GuardrailRule } from './document.ts'
import type { Evaluation } from './model.ts'

type Context = Record<string, unknown>

/** Maximum size of the cached results of a process, in bytes. */
const CACHE_BYTES = 16 * 1024 * 1024

const contextCache = processSingleton(({ config }) => ({
  cached: new LRUCache<string, { context: Context }>({
    ttl: Math.max(1, config.GUARDRAIL_CONTEXT_TTL_MS),
    maxSize: CACHE_BYTES,
    sizeCalculation: ({ context }) => JSON.stringify(context).length + 1,
  }),
  /** Concurrent calls for the same key share one request. */
  pending: new Map<string, Promise<Context | null>>(),
}))

type CallContext = { guardrail_context: Context | null; caller: () => Promise<Caller | null> }

export type GuardrailContext = { context: Context | null; source: Evaluation['context_source']; failed: boolean }

/** Returns the `context` for a rule: the caller's guardrail context, combined with the result of the context tool. */
export function guardrailContext(
  services: Services,
  rule: GuardrailRule,
  call: CallContext,
): GuardrailContext | Promise<GuardrailContext> {
  const { guardrail_context } = call
  if (rule.context_tool_id !== null && rule.readsContext) return withToolContext(services, rule, call)
  return { context: guardrail_context, source: guardrail_context ? 'caller' : 'none', failed: false }
}

async function withToolContext(services: Services, rule: GuardrailRule, call: CallContext): Promise<GuardrailContext> {
  const { guardrail_context } = call
  const answer = await loadToolContext(services, rule, call.caller)
  if (!answer) return { context: null, source: 'none', failed: true }
  if (rule.context_mode === 'replace' || !guardrail_context) return { context: answer, source: 'tool', failed: false }
  return { context: { ...guardrail_context, ...answer }, source: 'merged', failed: false }
}

/** Returns the context tool's result for a principal, cached briefly; null if the result is not an object. */
async function loadToolContext(
  services: Services,
  rule: GuardrailRule,
  caller: () => Promise<Caller | null>,
): Promise<Context | null> {
  const { cached, pending } = contextCache(services)
  const by = await contextCaller(services, rule, caller)
  const { credential, principal } = by ?? {}
  // Bounds may hide data from the principal, so they are part of the key.
  const bounds = by && boundsKey(by)
  const key = [rule.guardrail_id, rule.context_tool_id, credential?.id, principal?.type, principal?.id, bounds].join(
    ' ',
  )
  const hit = cached.get(key)
  if (hit) return hit.context
  const request = pending.get(key) ?? withoutTenantLimit(() => callContextTool(services, rule, by))
  if (!pending.has(key)) {
    pending.set(key, request)
    const clear = () => pending.delete(key)
    request.then(clear, clear)
    const answer = await request
    if (answer && services.config.GUARDRAIL_CONTEXT_TTL_MS > 0) cached.set(key, { context: answer })
  }
  return request
}

/**
 * Returns the caller of a context tool: the principal of the call, limited by the permissions of the guardrail's
 * author.
 */
async function contextCaller(
  services: Services,
  rule: GuardrailRule,
  caller: CallContext['caller'],
): Promise<Caller | null> {
  const by = await caller()
  const author = rule.row?.author ?? null
  return by && effectiveCaller(services, by, rule.project_id, { id: rule.guardrail_id, author })
}

async function callContextTool(
  services: Services,
  rule: GuardrailRule,
  caller: Caller | null,
): Promise<Context | null> {
  const { guardrail_id, context_tool_id, project_id } = rule
  const started = performance.now()
  let outcome = 'no_object'
  try {
    const [tool] = await listToolsById(services.pool, project_id, [context_tool_id as string])
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
    // A transient failure must not lead to an evaluation without facts.
    if (isTransient(error)) throw error
    outcome = error instanceof AppError ? error.code : 'INTERNAL_ERROR'
    if (!(error instanceof AppError)) services.log.error({ err: error, guardrail_id }, 'context tool failed')
    return null
  } finally {
    const ms = Math.round(performance.now() - started)
    services.log.info({ guardrail_id, tool_id: context_tool_id, project_id, outcome, ms }, 'context tool called')
  }
}
