import { z } from 'zod'
import { projectField } from '#core/api/record.ts'
import { END_USER_SCOPES, type EndUserLimits } from '#core/iam/caller.ts'
import { DEFAULT_LIMITS, MAX_LIMIT_FACTOR } from './limits.ts'
import { ActorName } from './model.ts'

const reference = z.string().min(1).max(255)

const LIMITS: Record<keyof EndUserLimits, string> = {
  requests_per_minute: 'Requests per minute',
  messages_per_hour: 'Messages per hour',
  open_sessions: 'Open sessions at the same time',
  streams: 'Open streams of sessions and turns at the same time',
  message_chars: 'Characters of a message',
  upload_bytes_per_day: 'Uploaded bytes per day',
}

const limit = (name: keyof EndUserLimits) =>
  z
    .int()
    .min(1)
    .max(DEFAULT_LIMITS[name] * MAX_LIMIT_FACTOR)
    .optional()
    .describe(`${LIMITS[name]}. Default ${DEFAULT_LIMITS[name]}.`)

const isOrigin = (text: string): boolean => URL.parse(text)?.origin === text && text !== 'null'

const fields = {
  ttl_seconds: z
    .int()
    .min(60)
    .max(86_400)
    .optional()
    .describe('Lifetime in seconds, at most ACTOR_TOKEN_MAX_TTL_SECONDS. Default 3600.'),
  agent_ids: z.array(reference).min(1).max(20).describe('IDs of the agents that the end user may talk to'),
  session_ids: z
    .array(reference)
    .max(50)
    .nullable()
    .optional()
    .describe(
      'IDs of the sessions that the end user may use; a list forbids new sessions. Null for all of its sessions with these agents.',
    ),
  scopes: z
    .array(z.enum(END_USER_SCOPES))
    .min(1)
    .max(END_USER_SCOPES.length)
    .optional()
    .describe(
      'What the token opens: `chat` — sessions and turns; `files` — uploads; `feedback` — ratings of replies; `approvals` — approvals of its sessions; `memories` — the facts stored about the end user. Default `chat`.',
    ),
  origins: z
    .array(z.string().max(255).refine(isOrigin, 'must be an origin, such as https://example.com'))
    .max(20)
    .nullable()
    .optional()
    .describe(
      'Origins of the pages that may use the token. A request with another Origin header is refused, which does not stop programs that send none. Null for all.',
    ),
  limits: z
    .strictObject({
      requests_per_minute: limit('requests_per_minute'),
      messages_per_hour: limit('messages_per_hour'),
      open_sessions: limit('open_sessions'),
      streams: limit('streams'),
      message_chars: limit('message_chars'),
      upload_bytes_per_day: limit('upload_bytes_per_day'),
    })
    .optional()
    .describe('Limits of the end user, counted over all of its tokens, each at most 100 times its default'),
  allow_unbounded_agents: z
    .boolean()
    .optional()
    .describe(
      'Whether to accept agents with platform tools and without a `boundary_policy`, whose calls have the permissions of the issuer',
    ),
}

export const ActorTokenInput = z
  .strictObject(fields)
  .meta({ id: 'ActorTokenInput', example: { agent_ids: ['agent_01k5p3vd7r9hj2x8m4qcw6tz0e'], ttl_seconds: 900 } })
export type ActorTokenInput = z.output<typeof ActorTokenInput>

export const ActorTokenForInput = z
  .strictObject({
    project_id: projectField,
    actor: z
      .strictObject({
        external_id: reference.describe('Your ID of the end user'),
        name: ActorName.describe('Display name of a new actor'),
      })
      .describe('End user to find by external_id or create'),
    ...fields,
  })
  .meta({
    id: 'ActorTokenForInput',
    example: {
      actor: { external_id: 'customer-17', name: 'Ada' },
      agent_ids: ['agent_01k5p3vd7r9hj2x8m4qcw6tz0e'],
    },
  })

/** An issued token. */
export const ActorToken = z
  .object({
    token: z.string().describe('Bearer credential of the end user'),
    token_type: z.literal('Bearer').describe('Always `Bearer`'),
    expires_at: z.iso.datetime(),
    actor_id: z.string(),
    jti: z.string().describe('ID of the token, which audit entries of its calls contain'),
    agents: z.array(z.string()).describe('IDs of the agents'),
    sessions: z.array(z.string()).nullable().describe('IDs of the sessions; null for all of the end user'),
    scopes: z.array(z.enum(END_USER_SCOPES)).describe('Groups of operations that the token opens'),
    limits: z
      .object(
        Object.fromEntries(
          Object.keys(LIMITS).map(name => [name, z.int().describe('Limit of the end user')]),
        ) as unknown as Record<keyof EndUserLimits, z.ZodInt>,
      )
      .describe('Limits of the end user, counted over all of its tokens'),
  })
  .meta({ id: 'ActorToken' })
