import { z } from 'zod'
import { columnFilter, containsFilter, equalsFilter, tagsFilter } from '#core/api/filters.ts'
import { booleanQuery, textFilter } from '#core/api/lists.ts'
import { type Operation, result } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { principalsChanged } from '#identity/principals/principal-cache.ts'
import { deleteMemoriesOf } from '#memory/facts/ownership.ts'
import { refuseEndUserBound } from '#memory/reach.ts'
import { mergeActor } from './merge.ts'
import { Actor, ActorInput, ActorMerge, ActorPatch, actorKind } from './model.ts'
import { countPurge, PurgeAccepted, PurgeDryRun, requestPurge, requireNotPurging } from './purge.ts'
import { actors } from './resource.ts'
import { foundActors } from './search.ts'
import { countMessages, findOrCreateActor } from './store.ts'

/** @throws AGENT_AND_CHAT_EXCLUSIVE if both links are set */
function checkLinks(links: { agent_id?: string | null; chat_id?: string | null }): void {
  if (links.agent_id != null && links.chat_id != null) raise('AGENT_AND_CHAT_EXCLUSIVE')
}

const raises = ['AGENT_AND_CHAT_EXCLUSIVE', 'AGENT_NOT_FOUND', 'CHAT_NOT_FOUND'] as const

export const actorOperations: Operation[] = [
  actors.create({
    summary: 'Create an actor (end user or persona)',
    description:
      'Creates an end user or persona, or returns the actor with the external id unchanged with status 200. Only the permission to create is required for both.',
    body: ActorInput,
    validate: ({ body }) => checkLinks(body),
    answers: { 201: Actor, 200: Actor },
    raises: [...raises, 'NAME_CONFLICT'],
    check: ({ body }) => checkLinks(body),
    make({ body, project, tx, surface }) {
      const fields = { ...body, project_id: project }
      // A formation deletes the actors it creates, so it never adopts an existing one.
      return surface === 'formation' ? actorKind.insert(tx, fields) : findOrCreateActor(tx, fields)
    },
  }),
  // Order by actors_project; filters by actors_external_id, actors_agent and actors_tags.
  actors.list({
    filters: {
      external_id: equalsFilter('external_id'),
      name: containsFilter('name'),
      agent_id: equalsFilter('agent_id'),
      chat_id: equalsFilter('chat_id'),
      // conversation_messages_actor
      conversation_id: columnFilter(
        textFilter.describe('ID of a conversation in which the actor has a message'),
        id => sql.fragment`exists (select 1 from conversation_messages m
          where m.actor_id = t.id and m.conversation_id = ${id})`,
      ),
      tags: tagsFilter,
      search: columnFilter(
        textFilter.describe(
          'Part of the name or external ID, case-insensitive; or an ID of the actor, or of a session, conversation or generation of it that the caller may list',
        ),
        () => null,
      ),
    },
    where: context => [context.query.search !== undefined && foundActors(context, context.query.search)],
  }),
  actors.get(),
  actors.update({
    body: ActorPatch,
    raises: [...raises, 'NAME_CONFLICT'],
    check(next, { caller, stored }) {
      checkLinks(next)
      // Knowledge that turns read by `{actor_external_id}` depends on it.
      if (next.external_id !== stored.external_id) refuseEndUserBound(caller)
    },
  }),
  actors.remove({
    summary: 'Delete an actor',
    description:
      'Fails if the actor has messages. Deletes its memories and their ledger entries; the audit entry contains the counts.',
    raises: ['ACTOR_HAS_MESSAGES'],
    // Messages of the actor take a share lock on its row, which is locked here.
    async check(row, { audit, tx }) {
      const { id } = row
      await requireNotPurging(tx, id)
      const message_count = await countMessages(tx, id)
      if (message_count > 0) raise('ACTOR_HAS_MESSAGES', { meta: { message_count } })
      audit.detail.counts = await deleteMemoriesOf(tx, id)
      principalsChanged(tx, `actor:${id}`)
    },
  }),
  ...actors.tags(),
  actors.action('merge', {
    summary: 'Merge an actor into another',
    description:
      'Reassigns messages, conversations, sessions and memories to the other actor and deletes this one. The external ID of the deleted actor is not transferred.',
    action: 'actors:DeleteActor',
    alsoActions: ['actors:UpdateActor'],
    body: ActorMerge,
    answers: { 200: Actor },
    raises: ['ACTOR_NOT_FOUND', 'ACTOR_HAS_MESSAGES', 'SINGLE_SESSION_CONFLICT'],
    run({ resource, body, caller, tx, allow }) {
      refuseEndUserBound(caller)
      return mergeActor(tx, resource, body.into_actor_id, allow)
    },
  }),
  actors.action('purge-content', {
    id: 'purgeActorContent',
    summary: "Erase an end user's content",
    description:
      'Erases the content of conversations, turns and memories of the end user in the background. Records are retained without content. The counts are in the audit entry of the job. With `dry_run`, returns only the counts, within some seconds.',
    action: 'actors:PurgeActorContent',
    query: z.object({
      dry_run: booleanQuery.default(false).describe('Whether to count the affected records without erasing them'),
    }),
    answers: { 200: PurgeDryRun, 202: PurgeAccepted },
    raises: ['CONTENT_ON_HOLD'],
    async run({ tx, services, caller, resource, query, audit }) {
      if (!query.dry_run) return result(202, await requestPurge(tx, caller, resource.id))
      const counted = await countPurge(tx, services, caller, resource)
      Object.assign(audit.detail, counted)
      return counted
    },
  }),
]
