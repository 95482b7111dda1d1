import { extensionPoint } from '#core/base/declarations.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'

/**
 * Calls tools for content: converters of ingestion rules and rerankers of searches. The tools module registers the only
 * implementation.
 */
export type ToolRunner = {
  /** Returns a tool that the project owns or has accepted as a share. */
  find(db: Queryable, projectId: string, toolId: string): Promise<{ id: string; type: string } | null>
  /** Makes one server-side call as a principal. Failures of the tool are values; throws only for internal errors. */
  call(services: Services, call: KnowledgeToolCall): Promise<ToolOutcome>
}

export type KnowledgeToolCall = {
  project_id: string
  tool_id: string
  action: string | null
  input: Record<string, unknown>
  /** Source of its usage in metering. */
  source: 'ingestion' | 'direct'
  principal: PrincipalRecord
  /** Sent by tool types that support it. */
  idempotency_key: string | null
  timeout_ms: number
  signal?: AbortSignal
}

export type ToolOutcome = { ok: true; output: unknown } | { ok: false; error: RecordedFailure }

export const toolRunners = extensionPoint<ToolRunner>({
  name: 'tools',
  folder: 'content',
  description: 'Calls a tool of the project, for conversion of files and for ranking of search results',
})

/** Returns the tool that a rule or a search references, or null if the project has none with that ID. */
export const findTool: ToolRunner['find'] = async (db, projectId, toolId) =>
  (await toolRunners.only()?.find(db, projectId, toolId)) ?? null
