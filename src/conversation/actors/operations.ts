import { raise } from '../../core/api/errors.ts'
import { columnFilter, containsFilter, equalsFilter, tagsFilter } from '../../core/api/filters.ts'
import { textFilter } from '../../core/api/lists.ts'
import type { Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { sql } from '../../core/db/sql.ts'
import { deleteMemoriesOf } from '../../memory/memories/ownership.ts'
import { refuseForOne } from '../../memory/reach.ts'
import { findOrCreateActor } from './find-or-create.ts'
import { actorDeleteHooks, mergeActor } from './merge.ts'
import { Actor, ActorInput, ActorMerge, ActorPatch, actorKind } from './model.ts'
import { PurgeAccepted, requestPurge, requireNotPurging } from './purge.ts'
import { countMessages } from './store.ts'

const actors = resource(actorKind, { path: '/actors', tag: 'Actors' })

/** Raises AGENT_AND_CHAT_EXCLUSIVE for both links. */
function checkLinks(links: { agent_id?: string | null; chat_id?: string | null }): void {
  if (links.agent_id != null && links.chat_id != null) raise('AGENT_AND_CHAT_EXCLUSIVE')
}

const raises = ['AGENT_AND_CHAT_EXCLUSIVE', 'AGENT_NOT_FOUND', 'CHAT_NOT_FOUND'] as const

export const actorOperations: Operation[] = [
  actors.create({
    summary: 'Create an end user or persona, or find the one with the external id',
    description:
      'An actor that is found is answered with 200 and stays as it is; the right to create is enough to see it so.',
    body: ActorInput,
    answers: { 201: Actor, 200: Actor },
    raises: [...raises, 'NAME_CONFLICT'],
    check: ({ body }) => checkLinks(body),
    make({ body, project, tx, audit }) {
      const fields = { ...body, project_id: project }
      // A formation deletes what it has created, so it takes no actor that was there before.
      return audit.detail.surface === 'formation' ? actorKind.insert(tx, fields) : findOrCreateActor(tx, fields)
    },
  }),
  // actors_project serves the order; actors_external_id, actors_agent and actors_tags their filters.
  actors.list({
    filters: {
      external_id: equalsFilter('external_id'),
      name: containsFilter('name'),
      agent_id: equalsFilter('agent_id'),
      chat_id: equalsFilter('chat_id'),
      // conversation_messages_actor
      conversation_id: columnFilter(
        textFilter.describe('Actors with a message in the conversation'),
        id => sql.fragment`exists (select 1 from conversation_messages m
          where m.actor_id = t.id and m.conversation_id = ${id})`,
      ),
      tags: tagsFilter,
    },
  }),
  actors.get(),
  actors.update({
    body: ActorPatch,
    raises: [...raises, 'NAME_CONFLICT'],
    check(next, { caller, stored }) {
      checkLinks(next)
      // What turns read by `{actor_external_id}` follows from it.
      if (next.external_id !== stored.external_id) refuseForOne(caller)
    },
  }),
  actors.remove({
    summary: 'Delete an actor that no message names',
    description: 'Its memories and what their ledgers say of them go with it; the audit entry counts them.',
    raises: ['ACTOR_HAS_MESSAGES'],
    // A message that names the actor takes a share of its row, which is locked here.
    async check(row, { audit, tx }) {
      const { id } = row
      await requireNotPurging(tx, id)
      const message_count = await countMessages(tx, id)
      if (message_count > 0) raise('ACTOR_HAS_MESSAGES', { meta: { message_count } })
      audit.detail.counts = await deleteMemoriesOf(tx, id)
      for (const end of actorDeleteHooks.all()) await end(tx, row)
    },
  }),
  ...actors.tags(),
  actors.action('merge', {
    summary: 'Give the messages, conversations, sessions and memories of an actor to another one and delete it',
    description: 'The actor that goes away is deleted in the end; its external id leads to the other one no more.',
    action: 'actors:DeleteActor',
    alsoActions: ['actors:UpdateActor'],
    body: ActorMerge,
    answers: { 200: Actor },
    raises: ['ACTOR_NOT_FOUND', 'ACTOR_HAS_MESSAGES', 'SINGLE_SESSION_CONFLICT'],
    run({ resource, body, caller, tx, allow }) {
      refuseForOne(caller)
      return mergeActor(tx, resource, body.into_actor_id, allow)
    },
  }),
  actors.action('purge-content', {
    id: 'purgeActorContent',
    summary: 'Erase what the project keeps of what an end user said and was answered; records stay without content',
    description:
      'Done in the background across conversations, turns and memories of the end user; the answer says what is counted.',
    action: 'actors:PurgeActorContent',
    answers: { 202: PurgeAccepted },
    raises: ['CONTENT_ON_HOLD'],
    run: ({ tx, caller, resource }) => requestPurge(tx, caller, resource.id),
  }),
]
