import type { ToolRunner } from '#content/tools.ts'
import { AppError } from '#core/base/errors.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { callTool, openCall } from './call.ts'
import { resolveSharedTool } from './resolve.ts'

/** Runs tools as converters of ingestion rules and as rerankers of searches. */
export const toolRunner: ToolRunner = {
  find: resolveSharedTool,
  async call(services, { project_id, tool_id, action, input, source, principal, idempotency_key, timeout_ms, signal }) {
    try {
      const tool = await resolveSharedTool(services.pool, project_id, tool_id)
      if (!tool) throw new AppError('TOOL_NOT_FOUND', { meta: { id: tool_id } })
      const call = openCall(services, {
        action,
        input,
        caller: () => callerForPrincipal(services, principal, project_id),
        idempotencyKey: idempotency_key,
        metering: { source, record: idempotency_key },
        timeoutMs: timeout_ms,
        signal,
      })
      return { ok: true, output: await callTool(services, tool, call) }
    } catch (error) {
      if (!(error instanceof AppError) || isTransient(error)) throw error
      return { ok: false, error: error.recorded() }
    }
  },
}
