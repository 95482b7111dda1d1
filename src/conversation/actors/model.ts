import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { MetadataBag } from '../../core/api/metadata.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { TagInput } from '../../core/api/tags.ts'

/** Names: 1 to 255 characters after trimming. */
export const ActorName = z.string().trim().min(1).max(255)

const link = z.string().min(1).max(255)

const fields = {
  name: ActorName.describe('Name to show'),
  external_id: link
    .nullable()
    .describe(
      'Your id of the end user, one actor a project. Sent as a context header with every tool call of session turns: no personal data here',
    ),
  instructions: z.string().max(65_536).nullable().describe('Added to the system prompt while the actor speaks'),
  agent_id: link.nullable().describe('Agent that speaks as the actor; not together with chat_id'),
  chat_id: link.nullable().describe('Chat that speaks as the actor; not together with agent_id'),
  metadata: MetadataBag.nullable().describe('Data of your own; its keys are never touched'),
}

export const Actor = record('Actor', fields, { tags: true })

export const ActorInput = createBody('ActorInput', fields, ['name'], { name: 'Ada', external_id: 'customer-17' })

export const ActorPatch = patchBody(
  'ActorPatch',
  {
    ...fields,
    external_id: link.describe('Your id of the end user; once given it can be replaced, not taken away'),
    tags: TagInput.describe('Replaces the tags'),
  },
  { name: 'Ada Lovelace' },
)

export const ActorMerge = z
  .strictObject({ into_actor_id: z.string().describe('Actor that gets everything and stays') })
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
  events: ['created', 'updated', 'deleted'],
  unique: {
    actors_external_id: () =>
      raise('NAME_CONFLICT', {
        message: 'external_id is taken by another actor of the project',
        meta: { field: 'external_id' },
      }),
  },
})

export type ActorRow = z.output<typeof actorKind.row>
