import { findByExternalId } from '#conversation/actors/store.ts'
import { ownsSession } from '#conversation/sessions/end-user.ts'
import { findSession } from '#conversation/sessions/kind.ts'
import { canSeeProject } from '#core/api/access.ts'
import { type GenerationRow, generationKind } from '#execution/generations/model.ts'
import type { EndUserRef } from './identity.ts'
import type { OpenAiSession } from './session.ts'

/**
 * Returns a turn that the credential began, for the end user of the request or for none. Turns of others, without stored
 * content or of other projects do not exist for it.
 */
export async function findOwnTurn(
  { services, caller, project }: OpenAiSession,
  generationId: string,
  endUser: EndUserRef | null,
): Promise<GenerationRow | null> {
  const turn = await generationKind.find(services.pool, generationId)
  if (!turn || turn.content_redacted_at !== null || turn.content_mode === 'none') return null
  const isReadable = project === null ? canSeeProject(caller, turn.project_id) : turn.project_id === project
  if (turn.authority.id !== caller.principal.id || !isReadable) return null
  const { end_user } = caller
  if (end_user) {
    const session = turn.session_id === null ? null : await findSession(services.pool, turn.session_id)
    return session && ownsSession(session, end_user) ? turn : null
  }
  if (turn.actor_id === null) return turn
  if (!endUser || !('external_id' in endUser)) return null
  const actor = await findByExternalId(services.pool, turn.project_id, endUser.external_id)
  return actor?.id === turn.actor_id ? turn : null
}
