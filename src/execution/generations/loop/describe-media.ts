import { z } from 'zod'
import { checkSpend } from '#control/quotas/spend.ts'
import { recordUsage } from '#control/usage/meter.ts'
import { AppError } from '#core/base/errors.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { sql } from '#core/db/sql.ts'
import { callHelper } from '#execution/model-routes/helper-call.ts'
import { type LoadedRoute, loadedRoute, routeOf } from '#execution/model-routes/store.ts'
import type { AttachedFile, ModelAnswer } from '#execution/providers/model-messages.ts'
import { type DescribedFile, MAX_DESCRIPTION } from '../request/message-media.ts'
import { attributionOf } from './metering.ts'
import type { TurnAttempt } from './turn-attempt.ts'

const INSTRUCTION =
  'Describe the attached file for a reader who cannot see it: its contents, and all of its text verbatim. Answer with the description only.'

/**
 * Returns a description of a file by one call of the agent's describing route, and stores it with its message. Null if
 * the route was deleted, a quota is used up or the call fails: the turn then continues with a note.
 * @throws the reason of the signal
 */
export async function describeMedia(
  turn: TurnAttempt,
  { file_id, message_id }: DescribedFile,
  file: AttachedFile,
  signal: AbortSignal,
): Promise<string | null> {
  const { services, generation, context } = turn
  try {
    const stored = message_id === null ? null : { message_id, file_id }
    // The prompt is of the first attempt, which may have been lost after its call.
    const earlier = stored && generation.attempt > 1 ? await context.source?.description?.(services.pool, stored) : null
    if (earlier) return earlier
    const route = await findRoute(turn)
    if (!route) return null
    await checkSpend(services, generation, services.pool, { again: true })
    const answer = await requestDescription(turn, route, file, signal)
    const text = truncateChars(answer.text.trim(), MAX_DESCRIPTION)
    if (text === '') return null
    if (stored) await context.source?.described?.(services.pool, { ...stored, text })
    return text
  } catch (error) {
    if (signal.aborted) throw signal.reason
    if (!(error instanceof AppError)) throw error
    services.log.warn({ err: error, generation_id: generation.id, file_id }, 'media description failed')
    return null
  }
}

const routeRow = sql.type(z.object({ route: loadedRoute }))

async function findRoute({ services, agent }: TurnAttempt): Promise<LoadedRoute | null> {
  const model_route_id = agent.media?.describe_model_route_id ?? null
  if (model_route_id === null) return null
  return services.pool.oneFirst(routeRow`
    select ${routeOf({ ai_provider_id: null, model_route_id, project_id: agent.project_id })} as route`)
}

function requestDescription(
  { services, generation }: TurnAttempt,
  route: LoadedRoute,
  file: AttachedFile,
  signal: AbortSignal,
): Promise<ModelAnswer> {
  return callHelper(
    services,
    { provider: null, model: null, route },
    {
      helper: 'media_description',
      key: `media:${generation.id}:${generation.attempt}:${file.filename}`,
      request: {
        system: null,
        messages: [{ role: 'user', content: [{ type: 'text', text: INSTRUCTION }, file] }],
        signal,
      },
      meter: usage =>
        recordUsage(services, [
          {
            ...attributionOf(generation),
            ...usage,
            project_id: generation.project_id,
            publisher_project_id: generation.publisher_project_id,
          },
        ]),
    },
  )
}
