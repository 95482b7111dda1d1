import { Badge, Button, Card, FileInput, Group, Select, Stack, Text, Textarea, TextInput } from '@mantine/core'
import type { OrchestrationRun, PlaybookExecution, RequiredAction, Task, Workflow } from '@muster/client'
import {
  assignPlaybookStep,
  completePlaybookStep,
  getPlaybookVersion,
  getWorkflowVersion,
  skipPlaybookStep,
  submitHumanInput,
  transitionTask,
  updateTask,
  uploadFile,
} from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { type ReactNode, useState } from 'react'
import { api } from '#api.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import { useDraft } from '#components/draft.tsx'
import { usePersonName } from '#components/person.ts'
import { type ObjectSchema, SchemaForm, type Values } from '#components/schema-form.tsx'
import { Loaded } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { HumanForm } from '#graph/human-form.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import type { PendingForm } from './waiting.ts'

const STALE = [['forms'], ['approvals']]

/** A form that waits for a person, answered in place. */
export function FormCard({ form }: { form: PendingForm }) {
  switch (form.kind) {
    case 'input':
      return <InputCard form={form} run={form.run} action={form.action} />
    case 'step':
      return <StepCard form={form} execution={form.execution} />
    case 'task':
      return <TaskCard form={form} task={form.task} workflow={form.workflow} />
  }
}

/** Frame of a form: its subject, and the form when it is opened. */
function FormFrame({
  form: { kind, until, since },
  title,
  about,
  assignee,
  mayAnswer,
  link,
  extra,
  content,
  children,
}: {
  form: PendingForm
  title: string
  about: string
  assignee?: string | null
  mayAnswer: boolean
  /** View of the work that waits. */
  link: string
  /** Further actions. */
  extra?: ReactNode
  /** What the answer is about. */
  content?: ReactNode
  children: (close: () => void) => ReactNode
}) {
  const [isOpen, setOpen] = useState(false)
  const personName = usePersonName(useProjectId())
  const name = visible(title)
  return (
    <Card withBorder padding="md" radius="lg" component="article" aria-label={name}>
      <Stack gap="sm">
        <Stack gap={2}>
          <Group gap="sm">
            <Text fw={600}>{name}</Text>
            <Badge variant="default">{strings.inbox.formKind[kind]}</Badge>
          </Group>
          <Text size="sm" c="dimmed" component="div">
            {visible(about)} · {until ? strings.inbox.due : strings.inbox.since} <When at={until ?? since} />
            {assignee && ` · ${strings.inbox.assigned(personName(assignee))}`}
          </Text>
        </Stack>
        {content}
        {isOpen && children(() => setOpen(false))}
        <Group gap="sm">
          {mayAnswer && !isOpen && (
            <Button size="xs" onClick={() => setOpen(true)}>
              {strings.inbox.answer}
            </Button>
          )}
          {extra}
          <Button component={Link} to={link} size="xs" variant="default">
            {strings.inbox.work[kind]}
          </Button>
        </Group>
      </Stack>
    </Card>
  )
}

type CardOf<Kind extends PendingForm['kind']> = { form: Extract<PendingForm, { kind: Kind }> }

function InputCard({ form, run, action }: CardOf<'input'> & { run: OrchestrationRun; action: RequiredAction }) {
  const isAllowed = usePermissions(run.project_id)
  return (
    <FormFrame
      form={form}
      title={action.prompt ?? strings.inbox.inputNeeded}
      about={`${strings.inbox.node} ${action.node_id}`}
      mayAnswer={isAllowed(submitHumanInput) === true}
      link={`/p/${run.project_id}/runs/${run.id}`}
      content={
        action.context &&
        Object.keys(action.context).length > 0 && <Value value={action.context} label={strings.inbox.context} />
      }
    >
      {close => (
        <HumanForm
          submitLabel={strings.inbox.submit}
          runId={run.id}
          action={action}
          stale={STALE}
          onDone={close}
          onCancel={close}
        />
      )}
    </FormFrame>
  )
}

type Evidence = { name: string; kind: 'note' | 'file' | 'link' }
type ManualStep = {
  key: string
  title: string
  instructions?: string
  result_schema?: ObjectSchema | null
  required_evidence?: Evidence[] | null
  skippable?: boolean | null
}

function StepCard({ form, execution }: CardOf<'step'> & { execution: PlaybookExecution }) {
  const { id, project_id, playbook_id, playbook_version, playbook_name, waiting_on } = execution
  const isAllowed = usePermissions(project_id)
  const stepKey = waiting_on?.step_key ?? ''
  const mayComplete = isAllowed(completePlaybookStep) === true
  const mayRead = isAllowed(getPlaybookVersion) === true
  const version = useQuery<ManualStep[]>({
    queryKey: ['playbook-version', playbook_id, playbook_version],
    queryFn: async ({ signal }) => {
      const { config } = await getPlaybookVersion(api, { playbook_id, version: String(playbook_version) }, { signal })
      return config.steps as ManualStep[]
    },
    // A version never changes.
    staleTime: Number.POSITIVE_INFINITY,
    enabled: mayRead,
  })
  const step = version.data?.find(({ key }) => key === stepKey)
  return (
    <FormFrame
      form={form}
      title={step?.title ?? stepKey}
      about={playbook_name}
      assignee={waiting_on?.assignee}
      mayAnswer={mayComplete}
      link={`/p/${project_id}/cases/${execution.case_id}/executions/${id}`}
      content={
        step?.instructions && (
          <Text size="sm" className="wrap">
            {visible(step.instructions)}
          </Text>
        )
      }
      extra={
        <>
          {mayComplete && (
            <AssignButton
              assignee={waiting_on?.assignee ?? null}
              assign={async assignee => assignPlaybookStep(api, { execution_id: id, step_key: stepKey, assignee })}
            />
          )}
          {step?.skippable && isAllowed(skipPlaybookStep) && (
            <TextFormButton
              label={strings.inbox.skip}
              field={strings.inbox.reason}
              isRequired
              run={async reason => skipPlaybookStep(api, { execution_id: id, step_key: stepKey, reason })}
            />
          )}
        </>
      }
    >
      {close => {
        // Without the version its schema is not known, and the result is entered as JSON.
        const stepForm = () => (
          <StepForm executionId={id} stepKey={stepKey} step={step} projectId={project_id} onCancel={close} />
        )
        return mayRead ? (
          <Loaded query={version} operation={getPlaybookVersion} rows={1}>
            {stepForm}
          </Loaded>
        ) : (
          stepForm()
        )
      }}
    </FormFrame>
  )
}

/** The result of a step by its schema, with the evidence that the step requires. */
function StepForm({
  executionId,
  stepKey,
  step,
  projectId,
  onCancel,
}: {
  executionId: string
  stepKey: string
  step: ManualStep | undefined
  projectId: string
  onCancel: () => void
}) {
  const { value: texts, setValue: setTexts, forget: forgetTexts } = useDraft<Record<string, string>>('evidence', {})
  const [files, setFiles] = useState<Record<string, File | null>>({})
  const { value: note, setValue: setNote, forget: forgetNote } = useDraft('note', '')
  const required = step?.required_evidence ?? []
  const complete = useAction<Values>({
    run: async result => {
      const evidence = await Promise.all(
        required.map(async ({ name, kind }) => {
          if (kind === 'note') return { name, kind, content: texts[name] }
          if (kind === 'link') return { name, kind, url: texts[name] }
          const file = files[name]
          const { id } = file ? await uploadFile(api, { project_id: projectId, file, filename: file.name }) : { id: '' }
          return { name, kind, file_id: id }
        }),
      )
      return completePlaybookStep(api, {
        execution_id: executionId,
        step_key: stepKey,
        result,
        ...(evidence.length > 0 ? { evidence } : {}),
        ...(note.trim() ? { note: note.trim() } : {}),
      })
    },
    stale: STALE,
    message: strings.inbox.answered,
    onDone: () => {
      forgetTexts()
      forgetNote()
    },
  })
  const hasFields = Object.keys(step?.result_schema?.properties ?? {}).length > 0
  const schema: ObjectSchema = hasFields
    ? (step?.result_schema as ObjectSchema)
    : { properties: { result: { type: 'object', title: strings.inbox.result } } }
  return (
    <SchemaForm
      schema={schema}
      submitLabel={strings.inbox.complete}
      isPending={complete.isPending}
      error={complete.error}
      onSubmit={values => complete.mutate(hasFields ? values : ((values.result ?? {}) as Values))}
      onCancel={onCancel}
    >
      {required.map(({ name, kind }) => {
        const common = { label: visible(name), description: strings.inbox.evidenceKind[kind], required: true }
        if (kind === 'file')
          return (
            <FileInput
              key={name}
              {...common}
              placeholder={strings.inbox.chooseFile}
              value={files[name] ?? null}
              onChange={file => setFiles(all => ({ ...all, [name]: file }))}
            />
          )
        const TextField = kind === 'note' ? Textarea : TextInput
        return (
          <TextField
            key={name}
            {...common}
            value={texts[name] ?? ''}
            onChange={event => {
              const { value } = event.currentTarget
              setTexts(all => ({ ...all, [name]: value }))
            }}
          />
        )
      })}
      <Textarea
        label={strings.inbox.note}
        value={note}
        onChange={event => setNote(event.currentTarget.value)}
        autosize
      />
    </SchemaForm>
  )
}

type Definition = Pick<Workflow, 'transitions' | 'payload_schema'>

function TaskCard({ form, task, workflow }: CardOf<'task'> & { task: Task; workflow: Workflow }) {
  const { id, project_id, workflow_id, workflow_version, pending_transition } = task
  const isAllowed = usePermissions(project_id)
  const isCurrent = workflow_version === workflow.version
  const version = useQuery<Definition>({
    queryKey: ['workflow-version', workflow_id, workflow_version],
    queryFn: async ({ signal }) => {
      const args = { workflow_id, version: String(workflow_version) }
      return (await getWorkflowVersion(api, args, { signal })).config as Definition
    },
    staleTime: Number.POSITIVE_INFINITY,
    enabled: !isCurrent,
  })
  const definition = isCurrent ? workflow : version.data
  return (
    <FormFrame
      form={form}
      title={task.title}
      about={`${workflow.name}: ${task.state}`}
      assignee={task.assignee}
      mayAnswer={isAllowed(transitionTask) === true && pending_transition === null}
      link={`/p/${project_id}/workflows/${workflow_id}`}
      content={
        pending_transition ? (
          <Text size="sm">{strings.inbox.waitsForApproval(visible(pending_transition))}</Text>
        ) : (
          Object.keys(task.payload).length > 0 && <Value value={task.payload} label={strings.inbox.payload} />
        )
      }
      extra={
        isAllowed(updateTask) && (
          <AssignButton
            assignee={task.assignee}
            assign={async assignee => updateTask(api, { task_id: id, assignee })}
          />
        )
      }
    >
      {close =>
        definition ? (
          <TaskForm task={task} definition={definition} onCancel={close} />
        ) : (
          <Loaded query={version} operation={getWorkflowVersion} rows={1}>
            {loaded => <TaskForm task={task} definition={loaded} onCancel={close} />}
          </Loaded>
        )
      }
    </FormFrame>
  )
}

/** The payload of a task by its schema, and the transition that takes it on. */
function TaskForm({ task, definition, onCancel }: { task: Task; definition: Definition; onCancel: () => void }) {
  const mayUpdate = usePermissions(task.project_id)(updateTask) === true
  const offered = definition.transitions.filter(({ from }) => from.includes(task.state))
  const [transition, setTransition] = useState<string | null>(offered.length === 1 ? offered[0].name : null)
  const { value: note, setValue: setNote, forget } = useDraft('note', '')
  const [isTried, setTried] = useState(false)
  const move = useAction<Values>({
    run: async payload => {
      if (Object.keys(payload).length > 0) await updateTask(api, { task_id: task.id, payload })
      return transitionTask(api, {
        task_id: task.id,
        transition: transition ?? '',
        expected_state: task.state,
        ...(note.trim() ? { note: note.trim() } : {}),
      })
    },
    stale: STALE,
    message: strings.inbox.answered,
    onDone: forget,
  })
  return (
    <SchemaForm
      schema={(mayUpdate && (definition.payload_schema as ObjectSchema | null)) || { properties: {} }}
      initial={task.payload}
      submitLabel={strings.inbox.submit}
      isPending={move.isPending}
      error={move.error}
      onSubmit={payload => {
        setTried(true)
        if (transition) move.mutate(payload)
      }}
      onCancel={onCancel}
    >
      <Select
        label={strings.inbox.transition}
        data={offered.map(({ name, to, requires_approval }) => ({
          value: name,
          label: strings.inbox.transitionTo(visible(name), visible(to), requires_approval === true),
        }))}
        value={transition}
        onChange={setTransition}
        allowDeselect={false}
        error={isTried && !transition && strings.inbox.chooseTransition}
        required
      />
      <Textarea
        label={strings.inbox.note}
        value={note}
        onChange={event => setNote(event.currentTarget.value)}
        autosize
      />
    </SchemaForm>
  )
}

function AssignButton({
  assignee,
  assign,
}: {
  assignee: string | null
  assign: (assignee: string | null) => Promise<unknown>
}) {
  return (
    <TextFormButton
      label={strings.inbox.handOn}
      field={strings.inbox.assignee}
      initial={assignee ?? ''}
      run={async text => assign(text || null)}
    />
  )
}

/** A button whose dialog has one text field. */
function TextFormButton({
  label,
  field,
  initial = '',
  isRequired,
  run,
}: {
  label: string
  field: string
  initial?: string
  isRequired?: boolean
  run: (text: string) => Promise<unknown>
}) {
  return (
    <FormButton
      label={label}
      size="xs"
      variant="default"
      form={close => (
        <TextForm label={label} field={field} initial={initial} isRequired={isRequired} run={run} onDone={close} />
      )}
    />
  )
}

function TextForm({
  label,
  field,
  initial,
  isRequired,
  run,
  onDone,
}: {
  label: string
  field: string
  initial: string
  isRequired?: boolean
  run: (text: string) => Promise<unknown>
  onDone: () => void
}) {
  const action = useAction<string>({ run, stale: STALE, onDone })
  return (
    <SchemaForm
      schema={{
        properties: { text: { type: 'string', title: field, maxLength: 255, const: initial || undefined } },
        required: isRequired ? ['text'] : [],
      }}
      submitLabel={label}
      isPending={action.isPending}
      error={action.error}
      onSubmit={({ text }) => action.mutate(((text as string) ?? '').trim())}
      onCancel={onDone}
    />
  )
}
