import assigning from 'fields:assignPlaybookStep'
import pausing from 'fields:pausePlaybookExecution'
import skipping from 'fields:skipPlaybookStep'
import { Alert, Anchor, Badge, Button, Group, Stack, Text, Textarea, Timeline } from '@mantine/core'
import type { PlaybookExecution, PlaybookStep, PlaybookStepRecord } from '@muster/client'
import {
  assignPlaybookStep,
  cancelPlaybookExecution,
  completePlaybookStep,
  getPlaybookExecution,
  getPlaybookVersion,
  listExports,
  pausePlaybookExecution,
  resumePlaybookExecution,
  retryPlaybookExecution,
  skipPlaybookStep,
} from '@muster/client/operations'
import { IconPlayerPause, IconX } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { Suspense, useState } from 'react'
import { useIds } from '#address.ts'
import { api, BUSY_MS, every, POLL_MS } from '#api.ts'
import { ActionButton, useAction } from '#components/actions.tsx'
import { CommandButton } from '#components/command-form.tsx'
import { DraftScope, useDraft } from '#components/draft.tsx'
import { onDemand } from '#components/on-demand.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, Section } from '#components/record.tsx'
import { type ObjectSchema, SchemaForm, type Values } from '#components/schema-form.tsx'
import { Loaded } from '#components/states.tsx'
import { StatusBadge, StatusIcon, statusText } from '#components/status.tsx'
import { costText, TextButton, visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { type EnteredEvidence, EvidenceField, type EvidenceKind, evidenceOf, keptEvidence } from './evidence.tsx'
import { Exports } from './exports.tsx'

const Markdown = onDemand(async () => (await import('#components/markdown.tsx')).default)

const texts = strings.playbooks

/** Who or what an execution waits for. */
function waitText({ waiting_on }: Pick<PlaybookExecution, 'waiting_on'>): string | null {
  if (!waiting_on) return null
  switch (waiting_on.type) {
    case 'manual':
      return texts.waitsFor.manual(waiting_on.assignee ? visible(waiting_on.assignee) : texts.anybody)
    case 'event':
      return texts.waitsFor.event(visible(waiting_on.event_pattern ?? '*'))
    default:
      return texts.waitsFor[waiting_on.type]
  }
}

/** The state of an execution, and its waits. */
export function ExecutionBadge({ execution }: { execution: PlaybookExecution }) {
  const waits = waitText(execution)
  return (
    <Group gap={6}>
      <StatusBadge
        status={execution.status}
        label={execution.pause_requested_at ? strings.tasks.paused : statusText(execution.status)}
      />
      {waits && <Text size="sm">{waits}</Text>}
    </Group>
  )
}

const useExecution = (id: string) =>
  useQuery<PlaybookExecution>({
    queryKey: ['execution', id],
    queryFn: async ({ signal }) => getPlaybookExecution(api, { execution_id: id }, { signal }),
    refetchInterval: query =>
      every(['queued', 'running'].includes(query.state.data?.status ?? '') ? BUSY_MS : POLL_MS)(query),
  })

/** Returns the definitions of the steps, by key; none where the user may not read the version of the playbook. */
function useDefinitions({ project_id, playbook_id, playbook_version }: PlaybookExecution) {
  const isAllowed = usePermissions(project_id)
  const { data } = useQuery({
    queryKey: ['playbook', playbook_id, 'version', playbook_version],
    queryFn: async ({ signal }) => {
      const version = String(playbook_version)
      const { config } = await getPlaybookVersion(api, { playbook_id, version }, { signal })
      return new Map((config.steps as PlaybookStep[]).map(step => [step.key, step]))
    },
    enabled: isAllowed(getPlaybookVersion) === true,
    staleTime: Number.POSITIVE_INFINITY,
  })
  return data
}

/** Queries that a command makes stale. */
const staleOf = ({ id, case_id, project_id }: PlaybookExecution) => [
  ['execution', id],
  ['executions', case_id],
  ['case', case_id],
  ['cases', project_id],
]

/** The execution that works on a case: the step that waits can be answered in place. */
export function ActiveExecution({ executionId, caseId }: { executionId: string; caseId: string }) {
  const projectId = useProjectId()
  const execution = useExecution(executionId)
  return (
    <Loaded query={execution} operation={getPlaybookExecution}>
      {record => {
        const steps = record.steps ?? []
        const current = steps.find(({ key }) => key === record.current_step_key)
        const done = steps.filter(({ status }) => status === 'completed' || status === 'skipped').length
        return (
          <Section
            title={visible(record.playbook_name)}
            actions={
              <>
                <ExecutionBadge execution={record} />
                <Button
                  component={Link}
                  to={`/p/${projectId}/cases/${caseId}/executions/${executionId}`}
                  size="xs"
                  variant="default"
                >
                  {texts.openExecution}
                </Button>
              </>
            }
          >
            <Text size="sm" c="dimmed">
              {texts.of(done, steps.length)}
            </Text>
            {current && (
              <Stack gap="sm">
                <Text fw={600}>
                  {current.position + 1}. {visible(current.title)}
                </Text>
                <CurrentStep execution={record} step={current} />
              </Stack>
            )}
          </Section>
        )
      }}
    </Loaded>
  )
}

/** An execution of a playbook on a case. */
export function ExecutionView() {
  const { executionId } = useIds()
  const execution = useExecution(executionId)
  return (
    <Loaded query={execution} operation={getPlaybookExecution}>
      {record => <ExecutionPage execution={record} />}
    </Loaded>
  )
}

function ExecutionPage({ execution }: { execution: PlaybookExecution }) {
  const { id, project_id, case_id, usage, error, outcome } = execution
  const isAllowed = usePermissions(project_id)
  return (
    <Page
      title={`${execution.playbook_name} v${execution.playbook_version}`}
      intro={<ExecutionBadge execution={execution} />}
      actions={<ExecutionActions execution={execution} />}
    >
      {execution.pause_requested_at && (
        <Alert icon={<IconPlayerPause />} color="yellow" role="status">
          {texts.paused} {execution.pause_reason && visible(execution.pause_reason)}
        </Alert>
      )}
      {error && (
        <Alert color="red" icon={<IconX />} title={visible(error.code)}>
          {visible(error.message)}
        </Alert>
      )}
      <Section title={strings.cases.details}>
        <Facts
          facts={[
            [
              texts.case,
              <Anchor component={Link} key="case" to={`/p/${project_id}/cases/${case_id}`} underline="always">
                {texts.openCase}
              </Anchor>,
            ],
            [texts.outcome, outcome && visible(outcome)],
            [strings.started, <When key="started" at={execution.started_at ?? execution.created_at} />],
            [texts.completed, execution.completed_at && <When key="completed" at={execution.completed_at} />],
            [strings.playground.cost, usage && usage.cost_usd !== null && costText(Number(usage.cost_usd))],
          ]}
        />
      </Section>
      <AddressTabs
        tabs={[
          { value: 'steps', title: texts.steps, content: () => <Steps execution={execution} /> },
          {
            value: 'input',
            title: texts.input,
            content: () => <Value value={execution.input} label={texts.input} />,
          },
          ...(isAllowed(listExports) !== false
            ? [
                {
                  value: 'exports',
                  title: strings.cases.exports,
                  content: () => (
                    <Exports subject={{ subject_type: 'playbook_execution', subject_id: id }} projectId={project_id} />
                  ),
                },
              ]
            : []),
        ]}
      />
    </Page>
  )
}

function ExecutionActions({ execution }: { execution: PlaybookExecution }) {
  const { id, status, pause_requested_at, project_id } = execution
  const isAllowed = usePermissions(project_id)
  const isActive = ['queued', 'running', 'waiting'].includes(status)
  const stale = staleOf(execution)
  const at = { execution_id: id }
  return (
    <>
      {isActive && isAllowed(cancelPlaybookExecution) && (
        <ActionButton
          size="sm"
          label={texts.cancel}
          question={texts.cancelText}
          run={async () => cancelPlaybookExecution(api, at)}
          stale={stale}
        />
      )}
      {isActive && !pause_requested_at && isAllowed(pausePlaybookExecution) && (
        <CommandButton
          label={texts.pause}
          schema={pausing}
          run={async values => pausePlaybookExecution(api, { ...at, ...values })}
          stale={stale}
        />
      )}
      {isActive && pause_requested_at && isAllowed(resumePlaybookExecution) && (
        <ActionButton size="sm" label={texts.resume} run={async () => resumePlaybookExecution(api, at)} stale={stale} />
      )}
      {status === 'failed' && isAllowed(retryPlaybookExecution) && (
        <ActionButton
          size="sm"
          variant="filled"
          label={texts.retry}
          run={async () => retryPlaybookExecution(api, at)}
          stale={stale}
        />
      )}
    </>
  )
}

function Steps({ execution }: { execution: PlaybookExecution }) {
  const steps = execution.steps ?? []
  return (
    <Section title={texts.steps}>
      <Timeline bulletSize={28} lineWidth={2} active={-1} aria-label={texts.steps}>
        {steps.map(step => {
          return (
            <Timeline.Item
              key={step.key}
              bullet={<StatusIcon status={step.status} size={18} />}
              title={
                <Group gap="xs">
                  <Text fw={600} component="span">
                    {step.position + 1}. {visible(step.title)}
                  </Text>
                  <Badge variant="default">{texts.types[step.type]}</Badge>
                </Group>
              }
            >
              <StepDetails step={step} />
              {step.key === execution.current_step_key && <CurrentStep execution={execution} step={step} />}
            </Timeline.Item>
          )
        })}
      </Timeline>
    </Section>
  )
}

function StepDetails({ step }: { step: PlaybookStepRecord }) {
  const [open, setOpen] = useState<'input' | 'output' | null>(null)
  const { status, attempt, started_at, completed_at, completed_by, note, error, assignee, input, output } = step
  const parts = [
    statusText(status),
    attempt > 1 && texts.attempt(attempt),
    assignee && visible(assignee),
    completed_by && `${texts.by} ${strings.tasks.kinds[completed_by.kind]}`,
  ].filter(Boolean)
  return (
    <Stack gap={4} mb="xs">
      <Text size="sm" c="dimmed" component="div">
        {parts.join(' · ')}
        {started_at && (
          <>
            {' · '}
            <When at={completed_at ?? started_at} />
          </>
        )}
      </Text>
      {note && (
        <Text size="sm" className="wrap">
          {visible(note)}
        </Text>
      )}
      {error && (
        <Text size="sm">
          <span className="mono">{visible(error.code)}</span> {visible(error.message)}
        </Text>
      )}
      <Group gap="md">
        {input && <TextButton onClick={() => setOpen(open === 'input' ? null : 'input')}>{texts.input}</TextButton>}
        {output !== null && output !== undefined && (
          <TextButton onClick={() => setOpen(open === 'output' ? null : 'output')}>{texts.output}</TextButton>
        )}
      </Group>
      {open && <Value value={open === 'input' ? input : output} label={texts[open]} />}
    </Stack>
  )
}

/** What the current step waits for, and the forms that complete it. */
function CurrentStep({ execution, step }: { execution: PlaybookExecution; step: PlaybookStepRecord }) {
  const isAllowed = usePermissions(execution.project_id)
  const definitions = useDefinitions(execution)
  const { waiting_on } = execution
  const definition = definitions?.get(step.key)
  if (step.status !== 'waiting' || waiting_on?.step_key !== step.key) return null
  const resumes = waiting_on.resumes_at ?? waiting_on.expires_at
  const at = { execution_id: execution.id, step_key: step.key }
  const stale = staleOf(execution)
  const isManual = step.type === 'manual'
  return (
    <DraftScope value={`${step.key} ${step.attempt}`}>
      <Stack gap="md">
        {(definition?.instructions || step.due_at || resumes) && (
          <Stack gap={4}>
            {definition?.instructions && (
              <Suspense>
                <Markdown text={definition.instructions} />
              </Suspense>
            )}
            {step.due_at && (
              <Group gap="xs">
                <Text size="sm" component="div">
                  {texts.due} <When at={step.due_at} />
                </Text>
                {step.overdue && (
                  <Badge color="red.9" variant="filled">
                    {texts.overdue}
                  </Badge>
                )}
              </Group>
            )}
            {resumes && (
              <Text size="sm" component="div">
                {texts.resumes} <When at={resumes} />
              </Text>
            )}
          </Stack>
        )}
        {waiting_on.approval_id && (
          <Group>
            <Button component={Link} to={`/p/${execution.project_id}/inbox`} size="xs">
              {texts.open}
            </Button>
          </Group>
        )}
        {isManual && isAllowed(completePlaybookStep) && (
          <StepForm key={`${step.key} ${step.attempt}`} execution={execution} step={step} definition={definition} />
        )}
        {isManual && (
          <Group gap="xs">
            {isAllowed(completePlaybookStep) && (
              <CommandButton
                size="xs"
                label={texts.assign}
                schema={assigning}
                start={{ assignee: step.assignee }}
                run={async ({ assignee }) => assignPlaybookStep(api, { ...at, assignee: (assignee as string) ?? null })}
                stale={stale}
              />
            )}
            {definition?.skippable === true && isAllowed(skipPlaybookStep) && (
              <CommandButton
                size="xs"
                label={texts.skip}
                schema={skipping}
                run={async values => skipPlaybookStep(api, { ...at, ...(values as { reason: string }) })}
                stale={stale}
              />
            )}
          </Group>
        )}
      </Stack>
    </DraftScope>
  )
}

const NOTHING: EnteredEvidence = { text: '', file: null }

/** The answer to a manual step: a form of its result, the evidence that it requires, and a note. */
function StepForm({
  execution,
  step,
  definition,
}: {
  execution: PlaybookExecution
  step: PlaybookStepRecord
  definition: PlaybookStep | undefined
}) {
  const schema = (definition?.result_schema ?? {}) as ObjectSchema
  const required = (definition?.required_evidence ?? []) as { name: string; kind: EvidenceKind }[]
  const {
    value: evidence,
    setValue: setEvidence,
    forget: forgetEvidence,
  } = useDraft<Record<string, EnteredEvidence>>('evidence', {}, all =>
    Object.fromEntries(Object.entries(all).map(([name, value]) => [name, keptEvidence(value)])),
  )
  const { value: note, setValue: setNote, forget: forgetNote } = useDraft('note', '')
  const complete = useAction({
    run: async (result: Values) => {
      const given = required.filter(({ name }) => evidence[name]?.text.trim() || evidence[name]?.file)
      const pieces = await Promise.all(
        given.map(({ name, kind }) => evidenceOf(execution.project_id, name, kind, evidence[name])),
      )
      return completePlaybookStep(api, {
        execution_id: execution.id,
        step_key: step.key,
        result,
        ...(note.trim() ? { note: note.trim() } : {}),
        ...(pieces.length > 0 ? { evidence: pieces } : {}),
      })
    },
    stale: staleOf(execution),
    onDone: () => {
      forgetEvidence()
      forgetNote()
    },
  })
  return (
    <SchemaForm
      schema={schema}
      at="result"
      submitLabel={texts.answer}
      isPending={complete.isPending}
      error={complete.error}
      onSubmit={result => complete.mutate(result)}
    >
      {required.map(({ name, kind }) => (
        <EvidenceField
          key={name}
          label={visible(name)}
          kind={kind}
          value={evidence[name] ?? NOTHING}
          onChange={value => setEvidence(all => ({ ...all, [name]: value }))}
        />
      ))}
      <Textarea
        label={texts.note}
        autosize
        minRows={2}
        maxRows={12}
        value={note}
        onChange={event => setNote(event.currentTarget.value)}
      />
    </SchemaForm>
  )
}
