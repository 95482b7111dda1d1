import { mergeContext, type ToolContext } from '#core/api/tool-context.ts'
import type { SessionRow } from './model.ts'

/**
 * Returns the tool context of a turn: the session's keys, then the request's, then keys that only the platform sets.
 */
export function turnContext(session: SessionRow, requestContext: ToolContext | null | undefined): ToolContext {
  const platformContext = {
    sessionId: session.id,
    ...(session.actor_id !== null && { actorId: session.actor_id }),
    ...(session.actor_external_id !== null && { actorExternalId: session.actor_external_id }),
  }
  return mergeContext(session.tool_context, requestContext, platformContext)
}
