import type { RecordedFailure } from '../core/api/errors.ts'
import type { Queryable } from '../core/db/sql.ts'
import { extensionPoint } from '../core/declarations.ts'
import type { PrincipalRecord } from '../core/iam/caller.ts'
import type { Services } from '../core/process/services.ts'

/**
 * Tools as content calls them: converters of ingestion rules and rerankers of searches. The area of tools comes later
 * and contributes the one that there is; without it no tool exists.
 */
export type ToolRunner = {
  /** A tool of a project, or one shared into it. */
  find(db: Queryable, projectId: string, toolId: string): Promise<{ id: string; type: string } | null>
  /** One server-side call as a principal. Outcomes are values: it throws only for faults of its own. */
  call(services: Services, call: KnowledgeToolCall): Promise<ToolOutcome>
}

export type KnowledgeToolCall = {
  project_id: string
  tool_id: string
  action: string | null
  input: Record<string, unknown>
  /** What its usage is metered as. */
  source: 'ingestion' | 'direct'
  principal: PrincipalRecord
  /** Sent along by tools that can. */
  idempotency_key: string | null
  timeout_ms: number
  signal?: AbortSignal
}

export type ToolOutcome = { ok: true; output: unknown } | { ok: false; error: RecordedFailure }

export const toolRunners = extensionPoint<ToolRunner>('tools')

/** A tool that a rule or a search names; null when the project has none of that id. */
export const findTool: ToolRunner['find'] = async (db, projectId, toolId) =>
  (await toolRunners.only()?.find(db, projectId, toolId)) ?? null
