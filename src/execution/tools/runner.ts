import type { ToolRunner } from '../../content/tools.ts'
import { AppError } from '../../core/api/errors.ts'
import { isIdOf } from '../../core/api/kind.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import { callTool, openCall } from './call.ts'
import { type ToolRow, toolKind } from './model.ts'

/** A tool of a project; null when it has none of that id. */
async function findTool(db: Queryable, projectId: string, toolId: string): Promise<ToolRow | null> {
  const row = isIdOf(toolKind, toolId) ? await toolKind.find(db, toolId) : null
  return row?.project_id === projectId ? row : null
}

/** Tools as converters of ingestion rules and rerankers of searches. */
export const toolRunner: ToolRunner = {
  find: findTool,
  async call(services, { project_id, tool_id, action, input, principal, idempotency_key, timeout_ms, signal }) {
    try {
      const tool = await findTool(services.pool, project_id, tool_id)
      if (!tool) throw new AppError('TOOL_NOT_FOUND', { meta: { id: tool_id } })
      const call = openCall(services, {
        action,
        input,
        caller: () => callerForPrincipal(services, principal, project_id),
        idempotencyKey: idempotency_key,
        timeoutMs: timeout_ms,
        signal,
      })
      return { ok: true, output: await callTool(services, tool, call) }
    } catch (error) {
      if (!(error instanceof AppError)) throw error
      return { ok: false, error: error.recorded() }
    }
  },
}
