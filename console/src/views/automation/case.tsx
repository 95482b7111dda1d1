import closing from 'fields:closeCase'
import linking from 'fields:linkCase'
import reopening from 'fields:reopenCase'
import resolving from 'fields:resolveCase'
import starting from 'fields:startPlaybookExecution'
import changing from 'fields:updateCase'
import withdrawing from 'fields:withdrawCaseEvidence'
import { Badge, Button, Card, Group, Stack, Text, Textarea, Timeline } from '@mantine/core'
import type { Case, CaseEvidence, CaseLink, CasePatch, CaseTimelineEntry, PlaybookExecution } from '@muster/client'
import {
  addCaseEvidence,
  closeCase,
  commentCase,
  deleteCase,
  getCase,
  getPlaybookExecution,
  linkCase,
  listCaseEvidence,
  listCaseLinks,
  listCaseTimeline,
  listExports,
  listPlaybookExecutions,
  reopenCase,
  resolveCase,
  startPlaybookExecution,
  unlinkCase,
  updateCase,
  withdrawCaseEvidence,
} from '@muster/client/operations'
import { IconEdit, IconLink, IconPaperclip, IconPlayerPlay } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { useIds } from '#address.ts'
import { api, BUSY_MS, every, POLL_MS } from '#api.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { CommandButton, CommandForm } from '#components/command-form.tsx'
import { useDraft } from '#components/draft.tsx'
import { type Column, ListView, RecordLink, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, Section } from '#components/record.tsx'
import { RecordPage, RemoveButton } from '#components/record-page.tsx'
import { FailureAlert, Loaded, Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { CaseBadges } from './cases.tsx'
import { EvidenceForm } from './evidence.tsx'
import { ActiveExecution, ExecutionBadge } from './execution.tsx'
import { DownloadButton, Exports } from './exports.tsx'

const texts = strings.cases

/** Entries of a timeline that are shown at first, and with each request for more. */
const ENTRIES = 100

/** A case: its state, its work in progress, and the record of its work. */
export function CaseView() {
  const { caseId } = useIds()
  return (
    <RecordPage
      queryKey={['case', caseId]}
      get={getCase}
      ids={{ case_id: caseId }}
      refetchInterval={query => every(query.state.data?.status === 'in_progress' ? BUSY_MS : POLL_MS)(query)}
    >
      {found => <CasePage record={found} />}
    </RecordPage>
  )
}

/** Queries that a change of a case makes stale. */
const staleOf = ({ id, project_id }: Case) => [
  ['case', id],
  ['cases', project_id],
  ['executions', id],
]

function CasePage({ record }: { record: Case }) {
  const { id, status, active_execution_id, execution_count, evidence_count } = record
  const isAllowed = usePermissions(record.project_id)
  return (
    <Page
      title={`#${record.number} ${record.title}`}
      intro={
        <Stack gap="xs">
          {record.description && <Text c="dimmed">{visible(record.description)}</Text>}
          <CaseBadges record={record} />
        </Stack>
      }
      actions={<CaseActions record={record} />}
    >
      <Section title={texts.details}>
        <Facts
          facts={[
            [texts.assignee, record.assignee && visible(record.assignee)],
            [texts.due, record.due_at && <When key="due" at={record.due_at} />],
            [
              texts.subject,
              record.subject && visible(`${record.subject.type} ${record.subject.label ?? record.subject.id}`),
            ],
            [texts.externalId, record.external_id && visible(record.external_id)],
            [texts.endUser, record.actor_id && <span className="mono">{record.actor_id}</span>],
            [texts.outcome, record.outcome && visible(record.outcome)],
            [strings.tasks.note, record.outcome_note && visible(record.outcome_note)],
            [strings.created, <When key="created" at={record.created_at} />],
          ]}
        />
      </Section>
      {active_execution_id && isAllowed(getPlaybookExecution) && (
        <ActiveExecution executionId={active_execution_id} caseId={id} />
      )}
      <AddressTabs
        tabs={[
          { value: 'timeline', title: texts.timeline, content: () => <CaseTimeline record={record} /> },
          {
            value: 'evidence',
            title: `${texts.evidence} (${evidence_count})`,
            content: () => <Evidence record={record} />,
          },
          { value: 'links', title: texts.links, content: () => <Links record={record} /> },
          ...(isAllowed(listPlaybookExecutions) !== false
            ? [
                {
                  value: 'executions',
                  title: `${texts.executions} (${execution_count})`,
                  content: () => <Executions record={record} />,
                },
              ]
            : []),
          {
            value: 'fields',
            title: texts.fields,
            content: () =>
              Object.keys(record.fields).length === 0 ? (
                <Text c="dimmed">{texts.noFields}</Text>
              ) : (
                <Value value={record.fields} label={texts.fields} />
              ),
          },
          ...(isAllowed(listExports) !== false
            ? [
                {
                  value: 'exports',
                  title: texts.exports,
                  content: () => (
                    <Exports subject={{ subject_type: 'case', subject_id: id }} projectId={record.project_id} />
                  ),
                },
              ]
            : []),
        ]}
        key={status === 'closed' ? 'closed' : 'open'}
      />
    </Page>
  )
}

function CaseActions({ record }: { record: Case }) {
  const { id, status, active_execution_id } = record
  const isAllowed = usePermissions(record.project_id)
  const stale = staleOf(record)
  const isIdle = active_execution_id === null
  return (
    <>
      {isIdle && (
        <RemoveButton
          operation={deleteCase}
          ids={{ case_id: id }}
          question={texts.deleteText}
          stale={[['cases', record.project_id]]}
          list="cases"
        />
      )}
      {isAllowed(updateCase) && status !== 'closed' && (
        <FormButton
          label={strings.edit}
          variant="default"
          leftSection={<IconEdit size={16} />}
          form={close => <CaseEditForm record={record} onDone={close} />}
        />
      )}
      {isAllowed(reopenCase) && ['resolved', 'closed'].includes(status) && (
        <CommandButton
          label={texts.reopen}
          schema={reopening}
          run={async values => reopenCase(api, { case_id: id, ...(values as { reason: string }) })}
          stale={stale}
        />
      )}
      {isAllowed(closeCase) && isIdle && ['open', 'resolved'].includes(status) && (
        <CommandButton
          label={texts.close}
          schema={closing}
          run={async values => closeCase(api, { case_id: id, ...values })}
          stale={stale}
        />
      )}
      {isAllowed(resolveCase) && isIdle && status === 'open' && (
        <CommandButton
          label={texts.resolve}
          schema={resolving}
          run={async values => resolveCase(api, { case_id: id, ...(values as { outcome: string }) })}
          stale={stale}
        />
      )}
      {isAllowed(startPlaybookExecution) && isIdle && ['open', 'resolved'].includes(status) && (
        <FormButton
          label={texts.startExecution}
          leftSection={<IconPlayerPlay size={16} />}
          form={close => <StartForm record={record} onDone={close} />}
        />
      )}
    </>
  )
}

function CaseEditForm({ record, onDone }: { record: Case; onDone: () => void }) {
  return (
    <CommandForm
      label={strings.save}
      schema={changing}
      only={['title', 'description', 'priority', 'assignee', 'due_at', 'subject', 'fields', 'playbook_id']}
      initial={record}
      run={async values => updateCase(api, { case_id: record.id, ...(values as CasePatch) })}
      stale={staleOf(record)}
      onDone={onDone}
    />
  )
}

function StartForm({ record, onDone }: { record: Case; onDone: () => void }) {
  return (
    <CommandForm
      label={strings.playbooks.start}
      schema={{ ...starting, required: record.playbook_id ? [] : ['playbook_id'] }}
      only={['playbook_id', 'input', 'playbook_version']}
      start={{ playbook_id: record.playbook_id ?? undefined }}
      run={async values => startPlaybookExecution(api, { case_id: record.id, ...values })}
      stale={staleOf(record)}
      onDone={onDone}
    />
  )
}

function CaseTimeline({ record }: { record: Case }) {
  const { id, status } = record
  const isAllowed = usePermissions(record.project_id)
  const [shown, setShown] = useState(ENTRIES)
  const timeline = useQuery<{ entries: CaseTimelineEntry[]; total: number }>({
    queryKey: ['case', id, 'timeline', shown],
    queryFn: async ({ signal }) => {
      const { total } = await listCaseTimeline(api, { case_id: id, limit: 1 }, { signal }).page()
      const entries: CaseTimelineEntry[] = []
      const start = Math.max(0, total - shown)
      for (let offset = start; offset < total; offset += ENTRIES) {
        const limit = Math.min(ENTRIES, total - offset)
        entries.push(...(await listCaseTimeline(api, { case_id: id, limit, offset }, { signal }).page()).data)
      }
      return { entries: entries.reverse(), total }
    },
    placeholderData: previous => previous,
    refetchInterval: every(POLL_MS),
  })
  return (
    <Stack gap="lg">
      {status !== 'closed' && isAllowed(commentCase) && <CommentForm record={record} />}
      <Loaded query={timeline} operation={getCase}>
        {({ entries, total }) => (
          <Card withBorder padding="lg" radius="lg">
            <Timeline bulletSize={14} lineWidth={2} active={entries.length} aria-label={texts.timeline}>
              {entries.map(entry => (
                <Timeline.Item key={entry.id} title={<EntryTitle entry={entry} />}>
                  <Text size="sm" c="dimmed" component="div">
                    {strings.tasks.kinds[entry.principal_kind]} · <When at={entry.created_at} />
                  </Text>
                  <EntryDetails entry={entry} />
                </Timeline.Item>
              ))}
            </Timeline>
            {entries.length < total && (
              <Button
                mt="md"
                size="xs"
                variant="default"
                loading={timeline.isFetching}
                onClick={() => setShown(shown + ENTRIES)}
              >
                {texts.earlier}
              </Button>
            )}
          </Card>
        )}
      </Loaded>
    </Stack>
  )
}

function CommentForm({ record }: { record: Case }) {
  const { value: body, setValue: setBody } = useDraft('comment', '')
  const comment = useAction({
    run: async () => commentCase(api, { case_id: record.id, body: body.trim() }),
    stale: [['case', record.id]],
    onDone: () => setBody(''),
  })
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        if (body.trim()) comment.mutate()
      }}
    >
      <Stack gap="xs">
        <Textarea
          label={texts.comment}
          autosize
          minRows={2}
          maxRows={12}
          value={body}
          onChange={event => setBody(event.currentTarget.value)}
        />
        {comment.error && <FailureAlert error={comment.error} />}
        <Group>
          <Button type="submit" variant="default" disabled={!body.trim()} loading={comment.isPending}>
            {texts.send}
          </Button>
        </Group>
      </Stack>
    </form>
  )
}

function EntryTitle({ entry: { kind, data, step_key } }: { entry: CaseTimelineEntry }) {
  const about = kind.startsWith('step') ? (data.title ?? step_key) : (data.name ?? data.playbook_name)
  return (
    <Text fw={600} component="span">
      {texts.kinds[kind]}
      {typeof about === 'string' && `: ${visible(about)}`}
    </Text>
  )
}

type Changes = Record<string, { from: unknown; to: unknown }>

const inline = (value: unknown): string =>
  value === null || value === undefined || value === ''
    ? strings.none
    : visible(typeof value === 'string' ? value : JSON.stringify(value))

/** What a row of the timeline is about, in words where its kind is known. */
function EntryDetails({ entry: { kind, data } }: { entry: CaseTimelineEntry }) {
  const lines: string[] = []
  if (kind === 'comment') lines.push(inline(data.body))
  if (kind === 'status_changed') {
    const name = (status: unknown) => texts.statuses[String(status)] ?? inline(status)
    lines.push(data.from ? `${name(data.from)} → ${name(data.to)}` : name(data.to))
  }
  for (const [name, { from, to }] of Object.entries((data.changes ?? {}) as Changes))
    lines.push(`${visible(name)}: ${inline(from)} → ${inline(to)}`)
  for (const name of ['outcome', 'outcome_note', 'reason', 'note', 'decision'])
    if (data[name]) lines.push(inline(data[name]))
  if (kind.startsWith('link_')) lines.push(`${texts.linkTypes[String(data.type)]} ${inline(data.target_id)}`)
  const { error } = data as { error?: { message?: string } }
  if (error?.message) lines.push(visible(error.message))
  return lines.map(line => (
    <Text size="sm" className="wrap" key={line} lineClamp={12}>
      {line}
    </Text>
  ))
}

function Evidence({ record }: { record: Case }) {
  const isAllowed = usePermissions(record.project_id)
  const isOpen = record.status !== 'closed'
  const list = useList<CaseEvidence>(['case', record.id, 'evidence', record.updated_at], async (_, bounds, signal) =>
    listCaseEvidence(api, { case_id: record.id, ...bounds }, { signal }).page(),
  )
  const add = isOpen && isAllowed(addCaseEvidence) && (
    <FormButton
      label={texts.addEvidence}
      variant="default"
      form={close => <EvidenceForm record={record} onDone={close} />}
    />
  )
  const columns: Column<CaseEvidence>[] = [
    {
      title: strings.name,
      isWide: true,
      cell: each => <EvidenceContent evidence={each} />,
    },
    { title: texts.evidenceKind, cell: ({ kind }) => texts.evidenceKinds[kind] },
    { title: strings.created, cell: ({ created_at }) => <When at={created_at} /> },
    {
      title: '',
      cell: ({ id, withdrawn_at }) =>
        isOpen &&
        !withdrawn_at &&
        isAllowed(withdrawCaseEvidence) && (
          <CommandButton
            size="xs"
            label={texts.withdraw}
            schema={withdrawing}
            run={async values =>
              withdrawCaseEvidence(api, {
                case_id: record.id,
                evidence_id: id,
                ...(values as { reason: string }),
              })
            }
            stale={[['case', record.id]]}
          />
        ),
    },
  ]
  return (
    <Stack gap="md">
      {add && <Group>{add}</Group>}
      <ListView
        label={texts.evidence}
        list={list}
        operation={getCase}
        columns={columns}
        empty={
          <Notice icon={<IconPaperclip />} title={texts.noEvidence}>
            {texts.noEvidenceText}
          </Notice>
        }
      />
    </Stack>
  )
}

function EvidenceContent({ evidence }: { evidence: CaseEvidence }) {
  const { name, kind, content, file_id, url, sha256, withdrawn_at, withdrawn_reason } = evidence
  return (
    <Stack gap={4}>
      <Group gap="xs">
        <Text fw={600} td={withdrawn_at ? 'line-through' : undefined}>
          {visible(name)}
        </Text>
        {withdrawn_at && <Badge variant="default">{texts.withdrawn}</Badge>}
      </Group>
      {withdrawn_reason && <Text size="sm">{visible(withdrawn_reason)}</Text>}
      {content !== null && <Value value={content} label={visible(name)} />}
      {content === null && !file_id && !url && <Text size="sm">{texts.purged}</Text>}
      {url && <Text size="sm">{visible(url)}</Text>}
      {kind === 'file' && file_id && <DownloadButton fileId={file_id} label={strings.value.download} />}
      <Text size="xs" c="dimmed">
        {texts.hash} <span className="mono">{sha256}</span>
      </Text>
    </Stack>
  )
}

/** Views that show the records which links lead to. */
const LINKED_VIEWS: Partial<Record<CaseLink['type'], string>> = { session: 'sessions', case: 'cases' }

const caseLinkColumns = (projectId: string, mayLink: boolean | undefined, record: Case): Column<CaseLink>[] => [
  { title: texts.evidenceKind, cell: ({ type }) => texts.linkTypes[type] },
  {
    title: strings.agents.id,
    isWide: true,
    cell: ({ type, target_id, target_exists }) => {
      const view = LINKED_VIEWS[type]
      return (
        <Group gap="xs">
          <Text component="div" className="mono">
            {view && target_exists ? (
              <RecordLink to={`/p/${projectId}/${view}/${target_id}`}>{target_id}</RecordLink>
            ) : (
              target_id
            )}
          </Text>
          {!target_exists && <Badge variant="default">{texts.gone}</Badge>}
        </Group>
      )
    },
  },
  { title: strings.created, cell: ({ created_at }) => <When at={created_at} /> },
  {
    title: '',
    cell: ({ id }) =>
      mayLink && (
        <ActionButton
          label={strings.remove}
          run={async () => unlinkCase(api, { case_id: record.id, link_id: id })}
          stale={[['case', record.id]]}
        />
      ),
  },
]

function Links({ record }: { record: Case }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const mayLink = record.status !== 'closed' && isAllowed(linkCase)
  const list = useList<CaseLink>(['case', record.id, 'links', record.updated_at], async (_, bounds, signal) =>
    listCaseLinks(api, { case_id: record.id, ...bounds }, { signal }).page(),
  )
  const columns = caseLinkColumns(projectId, mayLink, record)
  return (
    <Stack gap="md">
      {mayLink && (
        <Group>
          <CommandButton
            label={texts.addLink}
            schema={linking}
            run={async values =>
              linkCase(api, { case_id: record.id, ...(values as { type: CaseLink['type']; target_id: string }) })
            }
            stale={[['case', record.id]]}
          />
        </Group>
      )}
      <ListView
        label={texts.links}
        list={list}
        operation={getCase}
        columns={columns}
        empty={
          <Notice icon={<IconLink />} title={texts.noLinks}>
            {texts.noLinksText}
          </Notice>
        }
      />
    </Stack>
  )
}

function Executions({ record }: { record: Case }) {
  const projectId = useProjectId()
  const list = useList<PlaybookExecution>(
    ['executions', record.id],
    async (_, bounds, signal) =>
      listPlaybookExecutions(api, { project_id: projectId, case_id: record.id, ...bounds }, { signal }).page(),
    { pollMs: POLL_MS },
  )
  const columns: Column<PlaybookExecution>[] = [
    {
      title: strings.playbooks.playbook,
      isWide: true,
      cell: ({ id, playbook_name, playbook_version }) => (
        <RecordLink to={`/p/${projectId}/cases/${record.id}/executions/${id}`}>
          {visible(playbook_name)} v{playbook_version}
        </RecordLink>
      ),
    },
    { title: strings.status, cell: execution => <ExecutionBadge execution={execution} /> },
    { title: texts.outcome, cell: ({ outcome }) => (outcome ? visible(outcome) : strings.none) },
    { title: strings.started, cell: ({ created_at }) => <When at={created_at} /> },
  ]
  return (
    <ListView
      label={texts.executions}
      list={list}
      operation={listPlaybookExecutions}
      columns={columns}
      empty={
        <Notice icon={<IconPlayerPlay />} title={texts.noExecutions}>
          {texts.noExecutionsText}
        </Notice>
      }
    />
  )
}
