import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { MetadataBag } from '#core/api/metadata.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { TagInput } from '#core/api/tags.ts'
import { raise } from '#core/base/errors.ts'

/** Names: 1 to 255 characters after trimming. */
export const ActorName = z.string().trim().min(1).max(255)

const link = z.string().min(1).max(255)

const fields = {
  name: ActorName.describe('Display name'),
  external_id: link
    .nullable()
    .describe(
      'Your ID of the end user, unique in the project. Sent as a context header with every tool call of session turns, so it must not contain personal data',
    ),
  instructions: z.string().max(65_536).nullable().describe('Added to the system prompt when the actor speaks'),
  agent_id: link.nullable().describe('ID of the agent that speaks as the actor. Cannot be combined with chat_id.'),
  chat_id: link.nullable().describe('ID of the chat that speaks as the actor. Cannot be combined with agent_id.'),
  metadata: MetadataBag.nullable().describe('Your metadata'),
}

export const Actor = record('Actor', fields, { tags: true })

export const ActorInput = createBody('ActorInput', fields, ['name'], { name: 'Ada', external_id: 'customer-17' })

export const ActorPatch = patchBody(
  'ActorPatch',
  {
    ...fields,
    external_id: link.describe('Your ID of the end user. Can be replaced but not removed.'),
    tags: TagInput.describe('Replaces the tags'),
  },
  { name: 'Ada Lovelace' },
)

export const ActorMerge = z
  .strictObject({ into_actor_id: z.string().describe('ID of the actor to merge into, which is retained') })
  .meta({ id: 'ActorMerge' })

export const actorKind = kind({
  name: 'actor',
  prefix: 'actor',
  table: 'actors',
  countKept: true,
  missing: 'ACTOR_NOT_FOUND',
  references: [
    { kind: 'agent', column: 'agent_id', on_delete: 'null' },
    { kind: 'chat', column: 'chat_id', on_delete: 'null' },
  ],
  record: Actor,
  hidden: { token_version: z.int() },
  events: ['created', 'updated', 'deleted'],
  unique: {
    actors_external_id: () =>
      raise('NAME_CONFLICT', {
        message: 'external_id is already used by another actor of the project',
        meta: { field: 'external_id' },
      }),
  },
})

export type ActorRow = z.output<typeof actorKind.row>
