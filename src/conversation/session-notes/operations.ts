import { contentUnavailable } from '#control/retention/erasure.ts'
import { eraseStoredResponses } from '#core/api/idempotency.ts'
import { pageOf, pageResult } from '#core/api/lists.ts'
import { type Context, itemOperation, type Operation, result } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import { sessionKind } from '../sessions/kind.ts'
import {
  emitNote,
  SessionNote,
  SessionNoteInput,
  SessionNotePatch,
  type SessionNoteRow,
  sessionNoteKind,
} from './model.ts'

const path = '/sessions/{session_id}/notes'
const tag = 'Session notes'
const notes = resource(sessionNoteKind, { path, tag, module: 'sessions', param: 'note_id' })

/** No model reads or writes notes: they are neither platform tools nor MCP tools, and background work cannot call them. */
const forPeople = { internal: true, byDefinitions: false } as const

/** @throws RESOURCE_NOT_FOUND if the note is not of the session of the path */
function requireMember({ params }: Pick<Context, 'params'>, { id, session_id }: SessionNoteRow): void {
  if (session_id !== params.session_id) raise('RESOURCE_NOT_FOUND', { meta: { id } })
}

/** @throws FORBIDDEN for another than the author, whose name the text has */
function requireAuthor({ principal }: Pick<Caller, 'principal'>, { author_type, author_id }: SessionNoteRow): void {
  if (principal.type !== author_type || principal.id !== author_id)
    raise('FORBIDDEN', { message: 'Only the author of a note changes it' })
}

export const sessionNoteOperations: Operation[] = [
  itemOperation(sessionKind, {
    ...forPeople,
    id: 'listSessionNotes',
    method: 'get',
    path,
    summary: 'List notes of a session',
    description: 'Returns the notes of operators, newest first, which neither the end user nor a model reads.',
    tag,
    action: 'sessions:ListSessionNotes',
    paged: true,
    timed: true,
    answers: { 200: pageOf(SessionNote) },
    // By session_notes_session.
    run: context =>
      pageResult<SessionNoteRow>(context, {
        columns: sessionNoteKind.columns,
        from: sql.fragment`session_notes t`,
        rows: sql.fragment`t.session_id = ${context.resource.id}`,
        time: sql.fragment`t.created_at`,
        order: sql.fragment`t.created_at desc, t.id desc`,
        key: sql.fragment`t.id`,
        present: sessionNoteKind.present,
      }),
  }),
  itemOperation(sessionKind, {
    ...forPeople,
    id: 'createSessionNote',
    method: 'post',
    path,
    summary: 'Create a note of a session',
    description:
      'Stores a note for colleagues, in a session of any status. Neither the end user nor a model reads it. Forks do not copy it.',
    tag,
    action: 'sessions:CreateSessionNote',
    body: SessionNoteInput,
    answers: { 201: SessionNote },
    async run({ tx, resource, body, caller: { principal } }) {
      const session =
        (await sessionKind.reference(tx, resource.id, resource.project_id)) ??
        raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
      const row = await sessionNoteKind.insert(tx, {
        project_id: session.project_id,
        session_id: session.id,
        author_type: principal.type,
        author_id: principal.id,
        text: body.text,
      })
      emitNote(tx, 'created', row)
      return result(201, sessionNoteKind.present(row))
    },
  }),
  notes.get({
    ...forPeople,
    action: 'sessions:ListSessionNotes',
    present: async context => {
      requireMember(context, context.resource)
      return sessionNoteKind.present(context.resource)
    },
  }),
  notes.update({
    ...forPeople,
    description: 'Changes the text. Only the author of the note may.',
    body: SessionNotePatch,
    quiet: true,
    check(_next, context) {
      requireMember(context, context.stored)
      requireAuthor(context.caller, context.stored)
    },
    event: null,
    changed: (row, { tx }) => emitNote(tx, 'updated', row),
  }),
  notes.remove({
    ...forPeople,
    check: (row, context) => requireMember(context, row),
    async removed({ id, project_id }, { tx, services }) {
      await eraseStoredResponses(tx, services, project_id, [id], contentUnavailable())
    },
  }),
]
