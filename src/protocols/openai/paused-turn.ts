import type { Queryable } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { type GenerationRow, generationKind } from '#execution/generations/model.ts'
import type { ModelMessage } from '#execution/providers/model-messages.ts'

/** A result of a client's tool. */
type ToolOutput = { tool_call_id: string; output: unknown }

/** Returns the results of tools with which a request ends. */
export function trailingResults(messages: readonly ModelMessage[]): ToolOutput[] {
  const last = messages.at(-1)
  if (last?.role !== 'tool') return []
  return last.content.map(({ tool_call_id, result }) => ({ tool_call_id, output: result }))
}

type Owner = { agent_id: string; project_id: string; actor_id: string | null; caller: Caller }

/** Returns the newest paused turn of the caller that waits for a tool call. By generations_paused. */
const findPaused = (db: Queryable, { agent_id, project_id, actor_id, caller }: Owner, callId: string) =>
  db.maybeOne(generationKind.sql`
    select ${generationKind.columns} from generations t
    where t.agent_id = ${agent_id} and t.project_id = ${project_id} and t.status = 'requires_action'
      and t.required_action is not null and t.actor_id is not distinct from ${actor_id} and t.authority ->> 'id' = ${caller.principal.id}
      and t.required_action -> 'tool_calls' @> jsonb_build_array(jsonb_build_object('id', ${callId}::text))
    order by t.created_at desc limit 1`)

/** Returns the turn that waits for exactly these results, or null: they are then plain history. */
export async function findPausedTurn(
  db: Queryable,
  owner: Owner,
  outputs: readonly ToolOutput[],
): Promise<GenerationRow | null> {
  if (outputs.length === 0) return null
  const found = await findPaused(db, owner, outputs[0].tool_call_id)
  const calls = (found?.required_action as { tool_calls?: { id: string }[] } | undefined)?.tool_calls ?? []
  const pending = new Set(calls.map(({ id }) => id))
  const isComplete = pending.size === outputs.length && outputs.every(({ tool_call_id }) => pending.has(tool_call_id))
  return isComplete ? found : null
}
