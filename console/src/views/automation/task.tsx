import creation from 'fields:createTask'
import pausing from 'fields:pauseTask'
import transitioning from 'fields:transitionTask'
import changing from 'fields:updateTask'
import { Anchor, Badge, Drawer, Group, Stack, Text, Timeline } from '@mantine/core'
import type { Task, TaskDetail, TaskPatch, TaskTransition, Workflow, WorkflowPayloadSchema } from '@muster/client'
import {
  createTask,
  deleteTask,
  getTask,
  listTaskHistory,
  pauseTask,
  resumeTask,
  retryTask,
  transitionTask,
  updateTask,
} from '@muster/client/operations'
import { IconAlertTriangle } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { api, every, POLL_MS } from '#api.ts'
import { ActionButton, FormButton } from '#components/actions.tsx'
import { CommandForm } from '#components/command-form.tsx'
import { DraftScope } from '#components/draft.tsx'
import { usePersonName } from '#components/person.ts'
import { Facts, LabelledValues } from '#components/record.tsx'
import { fieldLabel, type ObjectSchema, type Values } from '#components/schema-form.tsx'
import { Loaded } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.tasks

const HISTORY_ROWS = 100
const PAYLOAD = 'payload.'

/** Queries that a change of a task makes stale. */
export const staleOf = ({ id, workflow_id }: { id: string; workflow_id: string }) => [
  ['board', workflow_id],
  ['task', id],
]

/** The fields of a payload as fields of a form; null where its schema does not list them. */
function payloadFields(schema: WorkflowPayloadSchema): ObjectSchema | null {
  const { properties, required = [] } = (schema ?? {}) as ObjectSchema
  if (!properties || Object.keys(properties).length === 0) return null
  return {
    properties: Object.fromEntries(
      Object.entries(properties).map(([name, field]) => [
        PAYLOAD + name,
        { ...field, title: field.title ?? fieldLabel(name) },
      ]),
    ),
    required: required.map(name => PAYLOAD + name),
  }
}

/** Collects the fields of the payload in the values of a form. */
function withPayload(values: Values): Values {
  const isPayload = ([name]: [string, unknown]) => name.startsWith(PAYLOAD)
  const entries = Object.entries(values)
  const payload = entries.filter(isPayload).map(([name, value]) => [name.slice(PAYLOAD.length), value])
  return {
    ...Object.fromEntries(entries.filter(entry => !isPayload(entry))),
    ...(payload.length > 0 ? { payload: Object.fromEntries(payload) } : {}),
  }
}

/** Creates a task, with a field for each of its payload that the workflow's schema lists. */
export function TaskForm({ workflow, onDone }: { workflow: Workflow; onDone: () => void }) {
  const { id, project_id, payload_schema, states } = workflow
  const payload = payloadFields(payload_schema)
  return (
    <CommandForm
      label={strings.create}
      schema={{
        properties: { ...creation.properties, ...payload?.properties },
        required: [...(creation.required ?? []), ...(payload?.required ?? [])],
      }}
      only={['title', ...Object.keys(payload?.properties ?? { payload: true }), 'assignee', 'due_at', 'state']}
      options={{ state: states.map(({ name }) => ({ value: name, label: visible(name) })) }}
      run={async values =>
        createTask(api, { ...(withPayload(values) as { title: string }), workflow_id: id, project_id })
      }
      stale={[['board', id]]}
      onDone={onDone}
    />
  )
}

type TaskFormProps = { task: Task; onDone: () => void }

/** Changes the assignee of a task. */
export const AssignForm = ({ task, onDone }: TaskFormProps) => (
  <CommandForm
    label={strings.save}
    schema={changing}
    only={['assignee']}
    initial={task}
    run={async (values: TaskPatch) => updateTask(api, { task_id: task.id, ...values })}
    stale={staleOf(task)}
    onDone={onDone}
  />
)

/** Pauses a task. */
export const PauseForm = ({ task, onDone }: TaskFormProps) => (
  <CommandForm
    label={texts.pause}
    schema={pausing}
    run={async values => pauseTask(api, { task_id: task.id, ...values })}
    stale={staleOf(task)}
    onDone={onDone}
  />
)

/** Badges of a task, and the error of its work. */
export function TaskBadges({ task }: { task: Task }) {
  const personName = usePersonName(task.project_id)
  const { status, automation_status, automation_error, pause_requested_at, pending_transition, assignee, due_at } = task
  const color = { running: 'blue', failed: 'red', unrouted: 'orange', paused: 'gray', completed: 'teal' }
  return (
    <>
      <Group gap={6}>
        {automation_status && (
          <Badge variant="dot" color={color[automation_status]}>
            {texts.automation[automation_status]}
          </Badge>
        )}
        {pause_requested_at && (
          <Badge variant="dot" color="gray">
            {texts.paused}
          </Badge>
        )}
        {pending_transition && (
          <Badge variant="dot" color="yellow">
            {texts.gate}
          </Badge>
        )}
        {due_at && status === 'open' && (
          <Badge variant="dot" color={Date.parse(due_at) < Date.now() ? 'red' : 'gray'}>
            {texts.due} <When at={due_at} />
          </Badge>
        )}
        {assignee && <Badge variant="default">{personName(assignee)}</Badge>}
      </Group>
      {automation_error && (
        <Group gap={6} wrap="nowrap" align="flex-start">
          <IconAlertTriangle size={16} style={{ flex: 'none', marginTop: 2 }} aria-hidden />
          <Text size="sm" lineClamp={3}>
            <span className="mono">{visible(automation_error.code)}</span> {visible(automation_error.message)}
          </Text>
        </Group>
      )}
    </>
  )
}

/** A task next to its board: fields, commands and history. */
export function TaskDrawer({
  taskId,
  workflow,
  onClose,
}: {
  taskId: string | undefined
  workflow: Workflow
  onClose: () => void
}) {
  const task = useQuery<TaskDetail>({
    queryKey: ['task', taskId],
    queryFn: async ({ signal }) => getTask(api, { task_id: taskId as string }, { signal }),
    enabled: taskId !== undefined,
    refetchInterval: every(POLL_MS),
  })
  return (
    <Drawer
      opened={taskId !== undefined}
      onClose={onClose}
      position="right"
      size="lg"
      title={task.data && <Text fw={600}>{visible(task.data.title)}</Text>}
      closeButtonProps={{ 'aria-label': strings.close }}
    >
      {taskId && (
        <Loaded query={task} operation={getTask}>
          {record => (
            <DraftScope key={record.id} value={record.id}>
              <TaskPanel task={record} workflow={workflow} onDelete={onClose} />
            </DraftScope>
          )}
        </Loaded>
      )}
    </Drawer>
  )
}

function TaskPanel({ task, workflow, onDelete }: { task: TaskDetail; workflow: Workflow; onDelete: () => void }) {
  const isAllowed = usePermissions(task.project_id)
  const isOpen = task.status === 'open'
  return (
    <Stack gap="lg">
      <Stack gap="xs">
        <TaskBadges task={task} />
        {task.pending_approval_id && (
          <Anchor component={Link} to={`/p/${task.project_id}/inbox`} underline="always" size="sm">
            {texts.approvals}
          </Anchor>
        )}
      </Stack>
      <Group gap="xs">
        {isOpen &&
          isAllowed(transitionTask) &&
          !task.pending_transition &&
          task.available_transitions.map(transition => (
            <FormButton
              key={transition.name}
              size="xs"
              variant="light"
              label={visible(transition.name)}
              title={`${visible(transition.name)} → ${visible(transition.to)}`}
              form={close => <TransitionForm task={task} transition={transition.name} onDone={close} />}
            />
          ))}
        {isOpen && ['failed', 'unrouted'].includes(task.automation_status ?? '') && isAllowed(retryTask) && (
          <ActionButton
            label={texts.retry}
            run={async () => retryTask(api, { task_id: task.id })}
            stale={staleOf(task)}
          />
        )}
        {isOpen && task.pause_requested_at && isAllowed(resumeTask) && (
          <ActionButton
            label={texts.resume}
            run={async () => resumeTask(api, { task_id: task.id })}
            stale={staleOf(task)}
          />
        )}
        {isOpen && !task.pause_requested_at && isAllowed(pauseTask) && (
          <FormButton
            size="xs"
            variant="default"
            label={texts.pause}
            form={close => <PauseForm task={task} onDone={close} />}
          />
        )}
        {isAllowed(updateTask) && (
          <FormButton
            size="xs"
            variant="default"
            label={strings.edit}
            form={close => <TaskEditForm task={task} schema={workflow.payload_schema} onDone={close} />}
          />
        )}
        {isAllowed(deleteTask) && (
          <ActionButton
            label={strings.remove}
            question={texts.deleteText}
            run={async () => deleteTask(api, { task_id: task.id })}
            stale={[['board', task.workflow_id]]}
            onDone={onDelete}
          />
        )}
      </Group>
      <Facts
        facts={[
          [strings.state, visible(task.state)],
          [texts.entered, <When key="entered" at={task.entered_state_at} />],
          [texts.assignee, task.assignee && visible(task.assignee)],
          [texts.pending, task.pending_transition && visible(task.pending_transition)],
          [texts.due, task.due_at && <When key="due" at={task.due_at} />],
          [strings.created, <When key="created" at={task.created_at} />],
          [texts.version, task.workflow_version],
        ]}
      />
      <LabelledValues
        values={[
          [texts.payload, task.payload],
          [texts.result, task.last_result],
        ]}
      />
      <History taskId={task.id} updatedAt={task.updated_at} />
    </Stack>
  )
}

const TransitionForm = ({ task, transition, onDone }: TaskFormProps & { transition: string }) => (
  <CommandForm
    label={visible(transition)}
    schema={transitioning}
    only={['note']}
    run={async values => transitionTask(api, { task_id: task.id, transition, expected_state: task.state, ...values })}
    stale={staleOf(task)}
    onDone={onDone}
  />
)

function TaskEditForm({ task, schema, onDone }: TaskFormProps & { schema: WorkflowPayloadSchema }) {
  const payload = payloadFields(schema)
  const held = Object.fromEntries(Object.entries(task.payload).map(([name, value]) => [PAYLOAD + name, value]))
  return (
    <CommandForm
      label={strings.save}
      schema={{ properties: { ...changing.properties, ...payload?.properties } }}
      only={['title', ...Object.keys(payload?.properties ?? { payload: true }), 'assignee', 'due_at']}
      initial={{ ...task, ...held }}
      run={async values => updateTask(api, { task_id: task.id, ...withPayload(values) })}
      stale={staleOf(task)}
      onDone={onDone}
    />
  )
}

/** The latest moves of a task, the newest first. */
function History({ taskId, updatedAt }: { taskId: string; updatedAt: string }) {
  const history = useQuery<TaskTransition[]>({
    queryKey: ['task', taskId, 'history', updatedAt],
    queryFn: async ({ signal }) => {
      const { total } = await listTaskHistory(api, { task_id: taskId, limit: 1 }, { signal }).page()
      const offset = Math.max(0, total - HISTORY_ROWS)
      const { data } = await listTaskHistory(api, { task_id: taskId, limit: HISTORY_ROWS, offset }, { signal }).page()
      return data.toReversed()
    },
    placeholderData: previous => previous,
  })
  return (
    <Stack gap="sm" component="section" aria-label={texts.history}>
      <Text fw={600} component="h3" size="md">
        {texts.history}
      </Text>
      <Loaded query={history} operation={getTask}>
        {rows => (
          <Timeline bulletSize={14} lineWidth={2} active={rows.length}>
            {rows.map(row => (
              <Timeline.Item key={row.id} title={<Text fw={600}>{titleOf(row)}</Text>}>
                <Text size="sm" c="dimmed" component="div">
                  {texts.kinds[row.principal_kind]} · <When at={row.created_at} />
                </Text>
                {row.note && (
                  <Text size="sm" className="wrap">
                    {visible(row.note)}
                  </Text>
                )}
                {causesOf(row).map(([name, id]) => (
                  <Text size="xs" c="dimmed" key={id}>
                    {name} <span className="mono">{visible(id)}</span>
                  </Text>
                ))}
              </Timeline.Item>
            ))}
          </Timeline>
        )}
      </Loaded>
    </Stack>
  )
}

function titleOf({ from_state, to_state, transition }: TaskTransition): string {
  if (from_state === null) return texts.placed(visible(to_state))
  if (transition === null) return visible(to_state)
  return texts.step(visible(transition), visible(from_state), visible(to_state))
}

const causesOf = (row: TaskTransition): [name: string, id: string][] =>
  (
    [
      [texts.turn, row.generation_id],
      [texts.run, row.orchestration_run_id],
      [texts.tool, row.tool_id],
      [texts.firing, row.trigger_firing_id],
    ] as const
  ).flatMap(([name, id]) => (id ? [[name, id] as [string, string]] : []))
