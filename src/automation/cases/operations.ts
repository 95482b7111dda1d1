import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import {
  columnFilter,
  containsFilter,
  equalsFilter,
  filterConditions,
  filterSchema,
  oneOf,
  tagsFilter,
} from '../../core/api/filters.ts'
import { pageOf, pageResult, textFilter, timeOrDateInput } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation, result } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { sql } from '../../core/db/sql.ts'
import {
  changeCase,
  mergeFields,
  moveCase,
  requireNoExecution,
  requireNotClosed,
  requirePlaybook,
  requireStatus,
} from './change.ts'
import { createCase } from './create.ts'
import { addEvidence, hashInputEvidence } from './evidence.ts'
import { caseDeleteHooks, caseExecutions } from './executions.ts'
import { linkCase, presentLinks, requireLinkTarget } from './links.ts'
import { mergeCase } from './merge.ts'
import {
  CASE_STATUSES,
  Case,
  CaseInput,
  CaseLink,
  CasePatch,
  type CaseRow,
  CloseInput,
  CommentInput,
  caseKind,
  Evidence,
  EvidenceInput,
  type EvidenceRow,
  evidenceKind,
  LinkInput,
  type LinkRow,
  linkKind,
  MergeInput,
  PRIORITIES,
  ReasonInput,
  ResolveCaseInput,
  TIMELINE_KINDS,
  TimelineEntry,
  type TimelineRow,
  timelineKind,
} from './model.ts'
import { caseBytes, linkTo, withdrawEvidence } from './store.ts'
import { actorOf, appendTimeline, byCaller, entriesOf } from './timeline.ts'

const tag = 'Cases'
const path = '/cases'
const cases = resource(caseKind, { path, tag })

/** A time as a filter. */
const timeFilter = textFilter.pipe(timeOrDateInput.optional())

const now = (): string => new Date().toISOString()

/** The case under its lock, open for changes. Raises CASE_STATE_CONFLICT. */
async function lockedCase({ tx, resource: { id } }: Pick<Context<any, any, CaseRow>, 'tx' | 'resource'>) {
  const row = await caseKind.lock(tx, id)
  requireNotClosed(row)
  return row
}

/** Raises RESOURCE_NOT_FOUND for a part of another case than the path names. */
function requirePart({ params }: Pick<Context, 'params'>, part: { id: string; case_id: string } | null): void {
  if (part?.case_id !== params.case_id) raise('RESOURCE_NOT_FOUND', { meta: { id: part?.id } })
}

const timelineFilters = { kind: oneOf('kind', TIMELINE_KINDS) }

export const caseOperations: Operation[] = [
  operation({
    id: 'createCase',
    method: 'post',
    path,
    summary: 'Create a case, or find the one with the external id',
    description:
      'A case that is found is answered with 200 and stays as it is; the right to create is enough to see it so. With `start_execution` its playbook is started in the same transaction, which needs the right to.',
    tag,
    action: 'cases:CreateCase',
    alsoActions: ['playbooks:StartExecution', 'playbooks:GetPlaybook'],
    creates: caseKind,
    body: CaseInput,
    answers: { 201: Case, 200: Case },
    raises: ['ACTOR_NOT_FOUND', 'RESOURCE_NOT_FOUND', 'PROJECT_PAUSED'],
    async run(context) {
      const made = await createCase({ ...context, project: context.project as string }, context.body)
      return 'existing' in made ? result(200, caseKind.present(made.existing)) : caseKind.present(made)
    },
  }),
  // cases_project serves the order; cases_status, cases_assignee, cases_subject, cases_actor, cases_playbook, cases_due,
  // cases_external_id and cases_tags their filters.
  cases.list({
    description: 'A page ends before 16 MiB: `limit` says how many it was cut to.',
    bytes: caseBytes,
    filters: {
      status: oneOf('status', CASE_STATUSES),
      priority: oneOf('priority', PRIORITIES),
      assignee: equalsFilter('assignee'),
      playbook_id: equalsFilter('playbook_id'),
      actor_id: equalsFilter('actor_id'),
      external_id: equalsFilter('external_id'),
      subject_type: columnFilter(
        z.string().min(1).max(255).optional().describe('Exact match of the type of the subject'),
        value => sql.fragment`t.subject ->> 'type' = ${value}`,
      ),
      subject_id: columnFilter(
        z.string().min(1).max(255).optional().describe('Exact match of the id of the subject'),
        value => sql.fragment`t.subject ->> 'id' = ${value}`,
      ),
      number: columnFilter(
        z.coerce.number().int().min(1).max(2_147_483_647).optional().describe('The case of this number'),
        value => sql.fragment`t.number = ${value}`,
      ),
      q: columnFilter(
        containsFilter('title').schema.describe('Part of the title, whatever the case'),
        containsFilter('title').where,
      ),
      due_from: columnFilter(
        timeFilter.describe('Due at this time or later'),
        value => sql.fragment`t.due_at >= ${value}::timestamptz`,
      ),
      due_to: columnFilter(
        timeFilter.describe('Due at this time or earlier'),
        value => sql.fragment`t.due_at <= ${value}::timestamptz`,
      ),
      tags: tagsFilter,
    },
  }),
  cases.get(),
  cases.update({
    description: '`fields` is laid over what is there, key by key; a closed case refuses the change.',
    body: CasePatch,
    quiet: true,
    raises: ['ACTOR_NOT_FOUND', 'RESOURCE_NOT_FOUND', 'CASE_STATE_CONFLICT'],
    async check(_next, { stored, body, tx }) {
      requireNotClosed(stored)
      await requirePlaybook(tx, stored.project_id, body.playbook_id)
    },
    change: (next, { stored, body }) =>
      body.fields ? { ...next, fields: mergeFields(stored.fields, body.fields) } : next,
    event: null,
    write: (next, { tx, stored, caller }) => changeCase(tx, stored, caseKind.changes(stored, next), byCaller(caller)),
  }),
  cases.remove({
    description: 'With its timeline, evidence, links and executions; files and documents that it cites stay.',
    raises: ['PLAYBOOK_EXECUTION_CONFLICT'],
    async check(row, { tx }) {
      await requireNoExecution(tx, row)
      for (const { remove } of caseExecutions.all()) await remove(tx, row)
      for (const leave of caseDeleteHooks.all()) await leave(tx, row)
    },
  }),
  ...cases.tags({
    // It tells itself what changed.
    event: null,
    set: (tx, stored, tags, caller) => changeCase(tx, stored, { tags }, byCaller(caller)),
  }),
  cases.action('resolve', {
    summary: 'Resolve a case with its outcome',
    description: 'The case stays readable and can be reopened. Executions of playbooks on it are not ended by that.',
    body: ResolveCaseInput,
    answers: { 200: Case },
    raises: ['CASE_STATE_CONFLICT', 'PLAYBOOK_EXECUTION_CONFLICT'],
    async run({ tx, caller, body: { outcome, note = null }, resource }) {
      const stored = await caseKind.lock(tx, resource.id)
      await requireNoExecution(tx, stored)
      requireStatus(stored, 'open')
      const values = { status: 'resolved' as const, outcome, outcome_note: note, resolved_at: now() }
      return caseKind.present(
        await moveCase(tx, stored, values, byCaller(caller), { data: { outcome, outcome_note: note } }),
      )
    },
  }),
  cases.action('close', {
    summary: 'Close a case',
    description: 'A closed case is read only, but for its tags, until it is reopened.',
    body: CloseInput,
    bodyOptional: true,
    answers: { 200: Case },
    raises: ['CASE_STATE_CONFLICT', 'PLAYBOOK_EXECUTION_CONFLICT'],
    async run({ tx, caller, body, resource }) {
      const stored = await caseKind.lock(tx, resource.id)
      await requireNoExecution(tx, stored)
      requireStatus(stored, 'open', 'resolved')
      const reason = body?.reason ?? null
      return caseKind.present(
        await moveCase(tx, stored, { status: 'closed', closed_at: now() }, byCaller(caller), { data: { reason } }),
      )
    },
  }),
  cases.action('reopen', {
    summary: 'Reopen a resolved or closed case',
    description: 'Its outcome is cleared; the timeline keeps what it was.',
    body: ReasonInput,
    answers: { 200: Case },
    raises: ['CASE_STATE_CONFLICT'],
    async run({ tx, caller, body: { reason }, resource }) {
      const stored = await caseKind.lock(tx, resource.id)
      requireStatus(stored, 'resolved', 'closed')
      const { outcome, outcome_note, resolved_at, closed_at } = stored
      const cleared = { outcome: null, outcome_note: null, resolved_at: null, closed_at: null }
      const data = { reason, outcome, outcome_note, resolved_at, closed_at }
      return caseKind.present(await moveCase(tx, stored, { status: 'open', ...cleared }, byCaller(caller), { data }))
    },
  }),
  cases.action('merge', {
    summary: 'Merge a case into another',
    description:
      'The other case gets its timeline, evidence and links, and a link to it; it is closed with the outcome `merged`. Needs the right to change both, and to read the one that is merged.',
    action: 'cases:UpdateCase',
    alsoActions: ['cases:GetCase'],
    body: MergeInput,
    answers: { 200: Case },
    raises: ['CASE_STATE_CONFLICT', 'PLAYBOOK_EXECUTION_CONFLICT', 'RESOURCE_NOT_FOUND'],
    run: async context => caseKind.present(await mergeCase(context, context.resource, context.body.into_case_id)),
  }),
  itemOperation(caseKind, {
    id: 'listCaseTimeline',
    method: 'get',
    path: `${path}/{case_id}/timeline`,
    summary: 'List what happened to a case, oldest first',
    description: 'A page ends before 16 MiB: `limit` says how many it was cut to.',
    tag,
    action: 'cases:GetCase',
    paged: true,
    query: filterSchema(timelineFilters),
    answers: { 200: pageOf(TimelineEntry) },
    // Index case_timeline_case.
    run: context =>
      pageResult<TimelineRow>(context, {
        columns: timelineKind.columns,
        from: sql.fragment`case_timeline t`,
        rows: sql.fragment`t.case_id = ${context.resource.id}`,
        filters: filterConditions(timelineFilters, context.query),
        time: sql.fragment`t.created_at`,
        order: sql.fragment`t.seq`,
        bytes: sql.fragment`t.bytes`,
        present: timelineKind.present,
      }),
  }),
  cases.action('comments', {
    id: 'commentCase',
    command: ['cases', 'comment'],
    summary: 'Add a comment to the timeline of a case',
    description: 'Entries of the timeline are never changed.',
    action: 'cases:CommentCase',
    body: CommentInput,
    answers: { 201: TimelineEntry },
    raises: ['CASE_STATE_CONFLICT'],
    async run(context) {
      const { tx, caller, body } = context
      const row = await lockedCase(context)
      const [entry] = entriesOf(row, byCaller(caller), [{ kind: 'comment', data: { body: body.body } }])
      return result(201, timelineKind.present(await timelineKind.insert(tx, entry)))
    },
  }),
  itemOperation(caseKind, {
    id: 'listCaseEvidence',
    method: 'get',
    path: `${path}/{case_id}/evidence`,
    summary: 'List the evidence of a case, oldest first',
    description: 'A page ends before 16 MiB: `limit` says how many it was cut to.',
    tag,
    action: 'cases:GetCase',
    paged: true,
    answers: { 200: pageOf(Evidence) },
    // Index case_evidence_case.
    run: context =>
      pageResult<EvidenceRow>(context, {
        columns: evidenceKind.columns,
        from: sql.fragment`case_evidence t`,
        rows: sql.fragment`t.case_id = ${context.resource.id}`,
        time: sql.fragment`t.created_at`,
        order: sql.fragment`t.created_at, t.id`,
        key: sql.fragment`t.id`,
        bytes: sql.fragment`t.bytes`,
        present: evidenceKind.present,
      }),
  }),
  cases.action('evidence', {
    id: 'addCaseEvidence',
    summary: 'Add evidence to a case',
    description: 'It is never changed: what was wrong is withdrawn and added again. A file is hashed as it is now.',
    action: 'cases:AddEvidence',
    alsoActions: ['files:GetFile'],
    body: EvidenceInput,
    answers: { 201: Evidence },
    raises: ['CASE_STATE_CONFLICT', 'FILE_NOT_FOUND'],
    async run(context) {
      const { tx, caller, body } = context
      const row = await lockedCase(context)
      const pieces = await hashInputEvidence(context, row.project_id, [body])
      const { rows, happenings } = await addEvidence(tx, row, actorOf(caller), pieces)
      appendTimeline(tx, row, byCaller(caller), happenings)
      return result(201, evidenceKind.present(rows[0]))
    },
  }),
  itemOperation(caseKind, {
    id: 'withdrawCaseEvidence',
    method: 'post',
    path: `${path}/{case_id}/evidence/{evidence_id}/withdraw`,
    summary: 'Withdraw evidence of a case',
    description: 'It stays in the list, with its hash, and says why it does not count any more.',
    tag,
    action: 'cases:WithdrawEvidence',
    body: ReasonInput,
    answers: { 200: Evidence },
    raises: ['CASE_STATE_CONFLICT', 'RESOURCE_NOT_FOUND'],
    async run(context) {
      const { tx, caller, params, body } = context
      const row = await lockedCase(context)
      const piece = await evidenceKind.find(tx, params.evidence_id)
      if (!piece) return raise('RESOURCE_NOT_FOUND', { meta: { id: params.evidence_id } })
      requirePart(context, piece)
      if (piece.withdrawn_at !== null) return evidenceKind.present(piece)
      const withdrawn = await withdrawEvidence(tx, piece.id, body.reason)
      const data = { evidence_id: piece.id, name: piece.name, reason: body.reason }
      appendTimeline(tx, row, byCaller(caller), [{ kind: 'evidence_withdrawn', data }])
      return evidenceKind.present(withdrawn)
    },
  }),
  itemOperation(caseKind, {
    id: 'listCaseLinks',
    method: 'get',
    path: `${path}/{case_id}/links`,
    summary: 'List the links of a case, oldest first',
    description: 'To what else in the project the case is about.',
    tag,
    action: 'cases:GetCase',
    paged: true,
    answers: { 200: pageOf(CaseLink) },
    async run(context) {
      // Unique index on (case_id, type, target_id).
      const listed = await pageResult<LinkRow>(context, {
        columns: linkKind.columns,
        from: sql.fragment`case_links t`,
        rows: sql.fragment`t.case_id = ${context.resource.id}`,
        time: sql.fragment`t.created_at`,
        order: sql.fragment`t.created_at, t.id`,
        key: sql.fragment`t.id`,
        present: row => row,
      })
      return { ...listed, data: await presentLinks(context.db, listed.data as LinkRow[]) }
    },
  }),
  cases.action('links', {
    id: 'linkCase',
    summary: 'Link a case to something of its project',
    description: 'Something that the caller may read. A link that is there already is answered with 200.',
    action: 'cases:LinkCase',
    body: LinkInput,
    answers: { 201: CaseLink, 200: CaseLink },
    raises: ['CASE_STATE_CONFLICT'],
    async run(context) {
      const { tx, caller, body } = context
      const stored = await lockedCase(context)
      await requireLinkTarget(context, stored, body.type, body.target_id)
      const { row, happenings } = await linkCase(tx, stored, actorOf(caller), body)
      appendTimeline(tx, stored, byCaller(caller), happenings)
      const [shown] = await presentLinks(tx, [row ?? (await linkTo(tx, stored.id, body.type, body.target_id))])
      return result(row ? 201 : 200, shown)
    },
  }),
  itemOperation(caseKind, {
    id: 'unlinkCase',
    method: 'delete',
    path: `${path}/{case_id}/links/{link_id}`,
    summary: 'Remove a link of a case',
    description: 'What the link named stays as it is; the timeline records the removal.',
    tag,
    action: 'cases:LinkCase',
    answers: { 204: null },
    raises: ['CASE_STATE_CONFLICT', 'RESOURCE_NOT_FOUND'],
    async run(context) {
      const { tx, caller, params } = context
      const stored = await lockedCase(context)
      const link = await linkKind.find(tx, params.link_id)
      if (!link) return raise('RESOURCE_NOT_FOUND', { meta: { id: params.link_id } })
      requirePart(context, link)
      await linkKind.delete(tx, link.id)
      const { id: link_id, type, target_id } = link
      appendTimeline(tx, stored, byCaller(caller), [{ kind: 'link_removed', data: { link_id, type, target_id } }])
    },
  }),
]
