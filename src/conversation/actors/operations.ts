import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { listTable, pageOf, tagCondition, tagFilter, textFilter } from '../../core/api/lists.ts'
import { answer, itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { replacedTags, tagOperations } from '../../core/api/tags.ts'
import { sql, substring } from '../../core/db/sql.ts'
import { mergeActor } from './merge.ts'
import { Actor, ActorInput, ActorMerge, ActorPatch, type ActorRow, actorKind } from './model.ts'
import { obtainActor } from './obtain.ts'
import {
  countActorMessages,
  deleteActor as deleteRow,
  setActorTags,
  shareAgent,
  updateActor as updateRow,
} from './store.ts'

const tag = 'Actors'

/** Raises AGENT_AND_CHAT_EXCLUSIVE when an actor would have both links. */
function checkExclusive(links: { agent_id?: string | null; chat_id?: string | null }) {
  if (links.agent_id != null && links.chat_id != null) raise('AGENT_AND_CHAT_EXCLUSIVE')
}

/** Raises AGENT_NOT_FOUND or CHAT_NOT_FOUND for a link that names nothing of the project. */
async function checkLinks(
  db: Parameters<typeof shareAgent>[0],
  projectId: string,
  links: { agent_id?: string | null; chat_id?: string | null },
) {
  if (links.agent_id != null && !(await shareAgent(db, links.agent_id, projectId)))
    raise('AGENT_NOT_FOUND', { meta: { id: links.agent_id } })
  if (links.chat_id != null) raise('CHAT_NOT_FOUND', { meta: { id: links.chat_id } })
}

const createActor = operation({
  id: 'createActor',
  method: 'post',
  path: '/actors',
  summary: 'Create an end user or persona, or find the one with the external id',
  tag,
  action: 'actors:CreateActor',
  creates: actorKind,
  body: ActorInput,
  answers: { 201: Actor, 200: Actor },
  raises: ['AGENT_AND_CHAT_EXCLUSIVE', 'AGENT_NOT_FOUND', 'CHAT_NOT_FOUND'],
  async run({ body, project, tx }) {
    const project_id = project as string
    checkExclusive(body)
    await checkLinks(tx, project_id, body)
    const { actor, made } = await obtainActor(tx, {
      project_id,
      name: body.name,
      external_id: body.external_id ?? null,
      instructions: body.instructions ?? null,
      agent_id: body.agent_id ?? null,
      metadata: body.metadata ?? null,
    })
    return answer(made ? 201 : 200, actorKind.present(actor))
  },
})

const ActorFilter = z.object({
  external_id: textFilter,
  name: textFilter,
  agent_id: textFilter,
  chat_id: textFilter,
  conversation_id: textFilter,
  tags: tagFilter,
})

const listActors = operation({
  id: 'listActors',
  method: 'get',
  path: '/actors',
  summary: 'List actors',
  tag,
  action: 'actors:ListActors',
  lists: actorKind,
  query: ActorFilter,
  answers: { 200: pageOf(Actor) },
  // actors_project serves the order; actors_external_id, actors_agent and actors_tags their filters.
  run: context => {
    const { query } = context
    return listTable<ActorRow>(context, {
      table: 'actors',
      tags: true,
      where: [
        query.external_id !== undefined && sql.fragment`t.external_id = ${query.external_id}`,
        query.name !== undefined && sql.fragment`t.name ilike ${substring(query.name)}`,
        query.agent_id !== undefined && sql.fragment`t.agent_id = ${query.agent_id}`,
        query.chat_id !== undefined && sql.fragment`t.chat_id = ${query.chat_id}`,
        // conversation_messages_actor
        query.conversation_id !== undefined &&
          sql.fragment`exists (select 1 from conversation_messages m
            where m.actor_id = t.id and m.conversation_id = ${query.conversation_id})`,
        tagCondition(sql.fragment`t.tags`, query.tags),
      ],
      present: actorKind.present,
    })
  },
})

const getActor = itemOperation(actorKind, {
  id: 'getActor',
  method: 'get',
  path: '/actors/{actor_id}',
  summary: 'Read one actor',
  tag,
  action: 'actors:GetActor',
  answers: { 200: Actor },
  run: async ({ resource }) => actorKind.present(resource),
})

const updateActor = itemOperation(actorKind, {
  id: 'updateActor',
  method: 'patch',
  path: '/actors/{actor_id}',
  summary: 'Change an actor',
  tag,
  action: 'actors:UpdateActor',
  body: ActorPatch,
  answers: { 200: Actor },
  raises: ['AGENT_AND_CHAT_EXCLUSIVE', 'AGENT_NOT_FOUND', 'CHAT_NOT_FOUND', 'NAME_CONFLICT'],
  async run({ body, resource, tx, allowTags }) {
    const stored = await actorKind.find(tx, resource.id, true)
    if (!stored) raise(actorKind.notFound, { meta: { id: resource.id } })
    if (Object.values(body).every(value => value === undefined)) return actorKind.present(stored)
    const given = Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined))
    const next = { ...stored, ...given } as ActorRow
    checkExclusive(next)
    await checkLinks(tx, stored.project_id, body)
    if (body.tags) {
      next.tags = replacedTags(stored.tags, body.tags)
      allowTags(next.tags)
    }
    const changed = actorKind.present(await updateRow(tx, next))
    tx.emit(
      actorKind,
      'updated',
      { id: (changed as { id: string }).id, project_id: stored.project_id },
      { data: changed },
    )
    return changed
  },
})

const deleteActor = itemOperation(actorKind, {
  id: 'deleteActor',
  method: 'delete',
  path: '/actors/{actor_id}',
  summary: 'Delete an actor that no message names',
  tag,
  action: 'actors:DeleteActor',
  answers: { 204: null },
  raises: ['ACTOR_HAS_MESSAGES'],
  async run({ resource, tx }) {
    // The row's lock comes first: a message that names the actor takes a share of it.
    const stored = await actorKind.find(tx, resource.id, true)
    if (!stored) raise(actorKind.notFound, { meta: { id: resource.id } })
    const message_count = await countActorMessages(tx, stored.id)
    if (message_count > 0) raise('ACTOR_HAS_MESSAGES', { meta: { message_count } })
    await deleteRow(tx, stored.id)
    tx.emit(actorKind, 'deleted', stored)
  },
})

const mergeActors = itemOperation(actorKind, {
  id: 'mergeActor',
  method: 'post',
  path: '/actors/{actor_id}/merge',
  summary: 'Give the messages, conversations and sessions of an actor to another one and delete it',
  tag,
  action: 'actors:DeleteActor',
  alsoActions: ['actors:UpdateActor'],
  body: ActorMerge,
  answers: { 200: Actor },
  raises: ['ACTOR_NOT_FOUND', 'SINGLE_SESSION_CONFLICT'],
  run: ({ resource, body, tx, allow }) => mergeActor(tx, resource, body.into_actor_id, allow),
})

export const actorOperations: Operation[] = [
  createActor,
  listActors,
  getActor,
  updateActor,
  deleteActor,
  ...tagOperations(actorKind, {
    path: '/actors/{actor_id}',
    tag,
    read: 'actors:GetActor',
    write: 'actors:UpdateActor',
    setTags: (tx, row, tags) => setActorTags(tx, row.id, tags),
  }),
  mergeActors,
]
