import { z } from 'zod'
import {
  columnFilter,
  containsFilter,
  equalsFilter,
  filterConditions,
  filterSchema,
  oneOf,
  tagsFilter,
} from '#core/api/filters.ts'
import { pageOf, pageResult, textFilter, timeOrDateInput } from '#core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation, result } from '#core/api/operation.ts'
import { systemClock } from '#core/base/clock.ts'
import { raise } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import {
  changeCase,
  mergeFields,
  moveCase,
  requireNoExecution,
  requireNotClosed,
  requirePlaybook,
  requireStatus,
} from './change.ts'
import { createCase, prepareCase } from './create.ts'
import { addEvidence, hashInputEvidence } from './evidence.ts'
import { caseExecutions } from './executions.ts'
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
import { caseBytes, requireLink, withdrawEvidence } from './store.ts'
import { actorOf, appendTimeline, byCaller, timelineEntries } from './timeline.ts'

const tag = 'Cases'
const path = '/cases'
const cases = resource(caseKind, { path, tag })

const timeFilter = textFilter.pipe(timeOrDateInput.optional())

const now = (): string => systemClock.now().toISOString()

/** Locks the case of the path. @throws CASE_STATE_CONFLICT if it is closed */
async function lockOpenCase({ tx, resource: { id } }: Pick<Context<any, any, CaseRow>, 'tx' | 'resource'>) {
  const row = await caseKind.lock(tx, id)
  requireNotClosed(row)
  return row
}

/** @throws RESOURCE_NOT_FOUND unless the part belongs to the case of the path */
function requirePart({ params }: Pick<Context, 'params'>, part: { id: string; case_id: string } | null): void {
  if (part?.case_id !== params.case_id) raise('RESOURCE_NOT_FOUND', { meta: { id: part?.id } })
}

const timelineFilters = { kind: oneOf('kind', TIMELINE_KINDS) }

export const caseOperations: Operation[] = [
  operation({
    id: 'createCase',
    method: 'post',
    path,
    summary: 'Create a case',
    description:
      'If a case with the `external_id` exists, returns it unchanged with 200; this requires no read permission. With `start_execution`, an execution of the playbook is started in the same transaction, which requires playbooks:StartExecution.',
    tag,
    action: 'cases:CreateCase',
    alsoActions: ['playbooks:StartExecution', 'playbooks:GetPlaybook'],
    creates: caseKind,
    body: CaseInput,
    answers: { 201: Case, 200: Case },
    raises: ['ACTOR_NOT_FOUND', 'RESOURCE_NOT_FOUND', 'PROJECT_PAUSED'],
    prepare: ({ services, project, body }) => prepareCase(services, project as string, body),
    async run({ prepared, ...context }) {
      const created = await createCase({ ...context, project: context.project as string }, context.body, prepared)
      return 'existing' in created ? result(200, caseKind.present(created.existing)) : caseKind.present(created)
    },
  }),
  // cases_project serves the order; cases_status, cases_assignee, cases_subject, cases_actor, cases_playbook,
  // cases_due, cases_external_id and cases_tags serve the filters.
  cases.list({
    description: 'A page holds at most 16 MiB; `limit` in the response is the reduced page size.',
    bytes: caseBytes,
    filters: {
      status: oneOf('status', CASE_STATUSES),
      priority: oneOf('priority', PRIORITIES),
      assignee: equalsFilter('assignee'),
      playbook_id: equalsFilter('playbook_id'),
      actor_id: equalsFilter('actor_id'),
      external_id: equalsFilter('external_id'),
      subject_type: columnFilter(
        z.string().min(1).max(255).optional().describe('Type of the subject, exact match'),
        value => sql.fragment`t.subject ->> 'type' = ${value}`,
      ),
      subject_id: columnFilter(
        z.string().min(1).max(255).optional().describe('ID of the subject, exact match'),
        value => sql.fragment`t.subject ->> 'id' = ${value}`,
      ),
      number: columnFilter(
        z.coerce.number().int().min(1).max(2_147_483_647).optional().describe('Number of the case'),
        value => sql.fragment`t.number = ${value}`,
      ),
      q: columnFilter(
        containsFilter('title').schema.describe('Substring of the title, case-insensitive'),
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
    description:
      'Keys of `fields` replace those keys of the current fields; other keys are unchanged. A closed case cannot be updated.',
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
    description:
      'Deletes the case with its timeline, evidence, links and executions. Referenced files and documents remain.',
    raises: ['PLAYBOOK_EXECUTION_CONFLICT'],
    async check(row, { tx }) {
      await requireNoExecution(tx, row)
      for (const { remove } of caseExecutions.all()) await remove(tx, row)
    },
  }),
  ...cases.tags({
    // changeCase emits the event.
    event: null,
    set: (tx, stored, tags, caller) => changeCase(tx, stored, { tags }, byCaller(caller)),
  }),
  cases.action('resolve', {
    summary: 'Resolve a case',
    description:
      'Records the outcome of an open case. Refused while an execution is active. A resolved case can be reopened.',
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
    description: 'A closed case is read-only except for its tags until it is reopened.',
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
    summary: 'Reopen a case',
    description: 'Reopens a resolved or closed case and clears its outcome, which remains in the timeline.',
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
      'Moves the timeline, evidence and links to the other case, links the other case to this case, and closes this case with the outcome `merged`. Requires cases:UpdateCase on both cases and cases:GetCase on this case.',
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
    summary: 'List timeline entries',
    description: 'A page holds at most 16 MiB; `limit` in the response is the reduced page size.',
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
    summary: 'Add a comment to a case',
    description: 'The comment becomes a timeline entry, which cannot be changed.',
    action: 'cases:CommentCase',
    body: CommentInput,
    answers: { 201: TimelineEntry },
    raises: ['CASE_STATE_CONFLICT'],
    async run(context) {
      const { tx, caller, body } = context
      const row = await lockOpenCase(context)
      const [entry] = timelineEntries(row, byCaller(caller), [{ kind: 'comment', data: { body: body.body } }])
      return result(201, timelineKind.present(await timelineKind.insert(tx, entry)))
    },
  }),
  itemOperation(caseKind, {
    id: 'listCaseEvidence',
    method: 'get',
    path: `${path}/{case_id}/evidence`,
    summary: 'List the evidence of a case',
    description: 'Oldest first. A page holds at most 16 MiB; `limit` in the response is the reduced page size.',
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
    description: 'Evidence cannot be changed, only withdrawn. The hash of a file is its current hash.',
    action: 'cases:AddEvidence',
    alsoActions: ['files:GetFile'],
    body: EvidenceInput,
    answers: { 201: Evidence },
    raises: ['CASE_STATE_CONFLICT', 'FILE_NOT_FOUND'],
    async run(context) {
      const { tx, caller, body } = context
      const row = await lockOpenCase(context)
      const pieces = await hashInputEvidence(context, row.project_id, [body])
      const { rows, timelineEvents } = await addEvidence(tx, row, actorOf(caller), pieces)
      appendTimeline(tx, row, byCaller(caller), timelineEvents)
      return result(201, evidenceKind.present(rows[0]))
    },
  }),
  itemOperation(caseKind, {
    id: 'withdrawCaseEvidence',
    method: 'post',
    path: `${path}/{case_id}/evidence/{evidence_id}/withdraw`,
    summary: 'Withdraw evidence of a case',
    description: 'Withdrawn evidence remains listed with its content, its hash and the reason.',
    tag,
    action: 'cases:WithdrawEvidence',
    body: ReasonInput,
    answers: { 200: Evidence },
    raises: ['CASE_STATE_CONFLICT', 'RESOURCE_NOT_FOUND'],
    async run(context) {
      const { tx, caller, params, body } = context
      const row = await lockOpenCase(context)
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
    summary: 'List the links of a case',
    description: 'Lists links to other resources of the project, oldest first.',
    tag,
    action: 'cases:GetCase',
    paged: true,
    answers: { 200: pageOf(CaseLink) },
    async run(context) {
      // By the unique index on (case_id, type, target_id).
      const page = await pageResult<LinkRow>(context, {
        columns: linkKind.columns,
        from: sql.fragment`case_links t`,
        rows: sql.fragment`t.case_id = ${context.resource.id}`,
        time: sql.fragment`t.created_at`,
        order: sql.fragment`t.created_at, t.id`,
        key: sql.fragment`t.id`,
        present: row => row,
      })
      return { ...page, data: await presentLinks(context.db, page.data as LinkRow[]) }
    },
  }),
  cases.action('links', {
    id: 'linkCase',
    summary: 'Link a case to a resource',
    description: 'The caller must be allowed to read the resource. An existing link is returned with 200.',
    action: 'cases:LinkCase',
    body: LinkInput,
    answers: { 201: CaseLink, 200: CaseLink },
    raises: ['CASE_STATE_CONFLICT'],
    async run(context) {
      const { tx, caller, body } = context
      const stored = await lockOpenCase(context)
      await requireLinkTarget(context, stored, body.type, body.target_id)
      const { row, timelineEvents } = await linkCase(tx, stored, actorOf(caller), body)
      appendTimeline(tx, stored, byCaller(caller), timelineEvents)
      const [link] = await presentLinks(tx, [row ?? (await requireLink(tx, stored.id, body.type, body.target_id))])
      return result(row ? 201 : 200, link)
    },
  }),
  itemOperation(caseKind, {
    id: 'unlinkCase',
    method: 'delete',
    path: `${path}/{case_id}/links/{link_id}`,
    summary: 'Delete a link of a case',
    description: 'The linked resource is unchanged. The timeline records the removal.',
    tag,
    action: 'cases:LinkCase',
    answers: { 204: null },
    raises: ['CASE_STATE_CONFLICT', 'RESOURCE_NOT_FOUND'],
    async run(context) {
      const { tx, caller, params } = context
      const stored = await lockOpenCase(context)
      const link = await linkKind.find(tx, params.link_id)
      if (!link) return raise('RESOURCE_NOT_FOUND', { meta: { id: params.link_id } })
      requirePart(context, link)
      await linkKind.delete(tx, link.id)
      const { id: link_id, type, target_id } = link
      appendTimeline(tx, stored, byCaller(caller), [{ kind: 'link_removed', data: { link_id, type, target_id } }])
    },
  }),
]
