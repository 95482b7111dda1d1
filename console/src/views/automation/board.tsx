import { ActionIcon, Badge, Box, Button, Card, Flex, Group, Menu, Modal, Stack, Text, Title } from '@mantine/core'
import { notifications } from '@mantine/notifications'
import type { Task, Workflow, WorkflowBoard, WorkflowBoardState, WorkflowTransition } from '@muster/client'
import {
  getWorkflowBoard,
  getWorkflowVersion,
  listTasks,
  pauseTask,
  resumeTask,
  retryTask,
  transitionTask,
  updateTask,
} from '@muster/client/operations'
import { IconBolt, IconDots, IconFlag, IconUser } from '@tabler/icons-react'
import { useMutation, useQueries, useQuery, useQueryClient } from '@tanstack/react-query'
import { useState } from 'react'
import { api, every, POLL_MS } from '#api.ts'
import { useAction } from '#components/actions.tsx'
import { DraftScope } from '#components/draft.tsx'
import { useFilters } from '#components/filters.ts'
import { RecordLink } from '#components/list.tsx'
import { FailureAlert, Loaded } from '#components/states.tsx'
import { ageText, visible } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { AssignForm, PauseForm, staleOf, TaskBadges, TaskDrawer } from './task.tsx'

const texts = strings.tasks

/** Cards of a column that are drawn at first, and with each request for more. */
const CARDS = 50

type Move = { task: Task; transition: WorkflowTransition; isDragged?: boolean }
type Dialog =
  | { kind: 'assign' | 'pause'; task: Task }
  | { kind: 'choose'; task: Task; state: string; transitions: WorkflowTransition[] }

/** Returns the transitions of a task, by the version that it has. */
function useTransitions(workflow: Workflow, tasks: Task[]): (task: Task) => WorkflowTransition[] {
  const isAllowed = usePermissions(workflow.project_id)
  const others = [...new Set(tasks.map(({ workflow_version }) => workflow_version))].filter(
    version => version !== workflow.version,
  )
  const versions = useQueries({
    queries: others.map(version => ({
      queryKey: ['workflow', workflow.id, 'version', version],
      queryFn: async () => getWorkflowVersion(api, { workflow_id: workflow.id, version: String(version) }),
      enabled: isAllowed(getWorkflowVersion) === true,
      staleTime: Number.POSITIVE_INFINITY,
    })),
  })
  const byVersion = new Map([
    [workflow.version, workflow.transitions],
    ...versions.flatMap(({ data }) =>
      data ? [[data.version, data.config.transitions as WorkflowTransition[]] as const] : [],
    ),
  ])
  return ({ status, state, workflow_version, pending_transition }) =>
    status === 'open' && !pending_transition && isAllowed(transitionTask)
      ? (byVersion.get(workflow_version) ?? []).filter(({ from }) => from.includes(state))
      : []
}

/** The board after a card was dragged, until the service has answered. */
function moved(board: WorkflowBoard, { task, transition }: Move): WorkflowBoard {
  if (transition.requires_approval || transition.to === task.state) return board
  const arrived: Task = {
    ...task,
    state: transition.to,
    entered_state_at: new Date().toISOString(),
    automation_status: null,
    automation_error: null,
  }
  return {
    ...board,
    states: board.states.map(column => {
      const { state, count, tasks } = column
      if (state === task.state) return { ...column, count: count - 1, tasks: tasks.filter(({ id }) => id !== task.id) }
      return state === transition.to ? { ...column, count: count + 1, tasks: [arrived, ...tasks] } : column
    }),
  }
}

/** The tasks of a workflow in the columns of its states. */
export function Board({ workflow }: { workflow: Workflow }) {
  const board = useQuery<WorkflowBoard>({
    queryKey: ['board', workflow.id],
    queryFn: async ({ signal }) => getWorkflowBoard(api, { workflow_id: workflow.id, per_state: CARDS }, { signal }),
    refetchInterval: every(POLL_MS),
  })
  const { filters, setFilters } = useFilters()
  return (
    <>
      <Loaded query={board} operation={listTasks}>
        {data => <Columns workflow={workflow} board={data} />}
      </Loaded>
      <TaskDrawer taskId={filters.task} workflow={workflow} onClose={() => setFilters({ task: undefined })} />
    </>
  )
}

/** Frames for which the focus follows a card: its menu closes, and its column is drawn again. */
const FOLLOWED_FRAMES = 60

/** Moves the focus to a card that is mounted again in another column, unless the user has put it elsewhere. */
function followFocus(task: Task, frames = FOLLOWED_FRAMES): void {
  requestAnimationFrame(() => {
    if (document.activeElement === document.body) document.getElementById(`task-${task.id}`)?.focus()
    if (frames > 1) followFocus(task, frames - 1)
  })
}

function Columns({ workflow, board }: { workflow: Workflow; board: WorkflowBoard }) {
  const cache = useQueryClient()
  const boardKey = ['board', workflow.id]
  const [dragged, setDragged] = useState<Task | null>(null)
  const [dialog, setDialog] = useState<Dialog | null>(null)
  const transitionsOf = useTransitions(
    workflow,
    board.states.flatMap(({ tasks }) => tasks),
  )
  const move = useMutation({
    mutationFn: async ({ task, transition }: Move) =>
      transitionTask(api, { task_id: task.id, transition: transition.name, expected_state: task.state }),
    onMutate: async change => {
      await cache.cancelQueries({ queryKey: boardKey })
      const before = cache.getQueryData<WorkflowBoard>(boardKey)
      if (change.isDragged) cache.setQueryData<WorkflowBoard>(boardKey, shown => shown && moved(shown, change))
      return { before }
    },
    onError: (_, __, context) => cache.setQueryData(boardKey, context?.before),
    onSuccess: ({ title, state, pending_transition }) => {
      const message = pending_transition ? texts.gated(visible(title)) : texts.moved(visible(title), visible(state))
      notifications.show({ message, color: 'teal' })
    },
    onSettled: async (_, __, { task }) => {
      await Promise.all(staleOf(task).map(queryKey => cache.invalidateQueries({ queryKey })))
      followFocus(task)
    },
  })
  const drop = (task: Task, state: string) => {
    const transitions = transitionsOf(task).filter(({ to }) => to === state)
    if (transitions.length === 1) move.mutate({ task, transition: transitions[0], isDragged: true })
    else if (transitions.length > 1) setDialog({ kind: 'choose', task, state, transitions })
  }
  const close = () => setDialog(null)
  return (
    <Stack gap="md">
      <Text size="sm" c="dimmed" visibleFrom="sm">
        {texts.boardHelp}
      </Text>
      {move.error && <FailureAlert error={move.error} title={texts.notMoved} />}
      <Box style={{ overflowX: 'auto' }} tabIndex={0} role="region" aria-label={strings.workflows.board} pb="xs">
        <Flex direction={{ base: 'column', sm: 'row' }} gap="sm" align="stretch">
          {board.states.map(column => (
            <Column
              key={column.state}
              column={column}
              workflow={workflow}
              accepts={dragged ? transitionsOf(dragged).filter(({ to }) => to === column.state) : []}
              transitionsOf={transitionsOf}
              onDrop={() => {
                if (dragged) drop(dragged, column.state)
                setDragged(null)
              }}
              onDrag={setDragged}
              onMove={change => move.mutate(change)}
              onDialog={setDialog}
            />
          ))}
        </Flex>
      </Box>
      <Modal opened={dialog?.kind === 'assign'} onClose={close} title={texts.assign}>
        {dialog?.kind === 'assign' && <AssignForm task={dialog.task} onDone={close} />}
      </Modal>
      <Modal opened={dialog?.kind === 'pause'} onClose={close} title={texts.pause}>
        {dialog?.kind === 'pause' && (
          <DraftScope value={dialog.task.id}>
            <PauseForm task={dialog.task} onDone={close} />
          </DraftScope>
        )}
      </Modal>
      <Modal
        opened={dialog?.kind === 'choose'}
        onClose={close}
        title={dialog?.kind === 'choose' && texts.choose(visible(dialog.state))}
      >
        {dialog?.kind === 'choose' && (
          <Group>
            {dialog.transitions.map(transition => (
              <Button
                key={transition.name}
                onClick={() => {
                  close()
                  move.mutate({ task: dialog.task, transition })
                }}
              >
                {visible(transition.name)}
              </Button>
            ))}
          </Group>
        )}
      </Modal>
    </Stack>
  )
}

type CardHandlers = {
  transitionsOf: (task: Task) => WorkflowTransition[]
  onDrag: (task: Task | null) => void
  onMove: (move: Move) => void
  onDialog: (dialog: Dialog) => void
}

function Column({
  column: { state, count, tasks, declared, oldest_at },
  workflow,
  accepts,
  onDrop,
  ...handlers
}: {
  column: WorkflowBoardState
  workflow: Workflow
  /** Transitions by which the dragged card may come here. */
  accepts: WorkflowTransition[]
  onDrop: () => void
} & CardHandlers) {
  const [shown, setShown] = useState(CARDS)
  const more = useQuery<Task[]>({
    queryKey: ['board', workflow.id, state, shown],
    queryFn: async ({ signal }) => {
      const pages: Task[] = []
      for (let offset = CARDS; offset < shown; offset += CARDS) {
        const { id, project_id } = workflow
        const bounds = { project_id, workflow_id: id, state, limit: CARDS, offset }
        pages.push(...(await listTasks(api, bounds, { signal }).page()).data)
      }
      return pages
    },
    enabled: shown > CARDS,
    placeholderData: previous => previous,
  })
  const first = new Set(tasks.map(({ id }) => id))
  const cards = [...tasks, ...(more.data ?? []).filter(task => !first.has(task.id) && task.state === state)]
  const { kind, terminal, on_enter } = workflow.states.find(({ name }) => name === state) ?? {}
  const isTarget = accepts.length > 0
  return (
    <Stack
      gap="sm"
      component="section"
      aria-label={visible(state)}
      p="sm"
      flex={{ base: 'none', sm: '1 0 184px' }}
      miw={0}
      bg={isTarget ? 'var(--mantine-primary-color-light)' : 'var(--console-sunk)'}
      bdrs="lg"
      onDragOver={event => isTarget && event.preventDefault()}
      onDrop={event => {
        event.preventDefault()
        onDrop()
      }}
    >
      <Stack gap={2} mih={44}>
        <Group gap={6} wrap="nowrap">
          {kind === 'human' && <IconUser size={16} role="img" aria-label={strings.workflows.kinds.human} />}
          {on_enter && <IconBolt size={16} role="img" aria-label={strings.workflows.kinds.machine} />}
          {terminal && <IconFlag size={16} role="img" aria-label={strings.workflows.kinds.terminal} />}
          <Title order={2} size="h6" style={{ overflowWrap: 'anywhere' }}>
            {visible(state)}
          </Title>
          <Badge variant="default" ml="auto">
            {count.toLocaleString()}
          </Badge>
        </Group>
        <Text size="xs" c="dimmed">
          {isTarget
            ? texts.dropHere(accepts.map(({ name }) => visible(name)).join(', '))
            : [!declared && texts.undeclared, oldest_at ? texts.oldest(ageText(oldest_at)) : texts.none]
                .filter(Boolean)
                .join(', ')}
        </Text>
      </Stack>
      {cards.map(task => (
        <TaskCard key={task.id} task={task} {...handlers} />
      ))}
      {more.error && <FailureAlert error={more.error} title={strings.failed.title} />}
      {count > cards.length && (
        <Button variant="default" size="xs" loading={more.isFetching} onClick={() => setShown(shown + CARDS)}>
          {texts.more(Math.min(CARDS, count - cards.length))}
        </Button>
      )}
    </Stack>
  )
}

function TaskCard({ task, transitionsOf, onDrag, onMove, onDialog }: { task: Task } & CardHandlers) {
  const projectId = useProjectId()
  const { id, title, workflow_id, created_at, entered_state_at } = task
  return (
    <Card
      withBorder
      padding="sm"
      radius="md"
      shadow="xs"
      component="article"
      aria-label={visible(title)}
      id={`task-${id}`}
      tabIndex={-1}
      draggable={transitionsOf(task).length > 0}
      onDragStart={event => {
        event.dataTransfer.effectAllowed = 'move'
        event.dataTransfer.setData('text/plain', id)
        onDrag(task)
      }}
      onDragEnd={() => onDrag(null)}
    >
      <Stack gap={6}>
        <Group gap={4} wrap="nowrap" align="flex-start" justify="space-between">
          <Text size="sm" component="div" draggable={false}>
            <RecordLink to={`/p/${projectId}/workflows/${workflow_id}?task=${id}`}>{visible(title)}</RecordLink>
          </Text>
          <TaskMenu task={task} transitions={transitionsOf(task)} onMove={onMove} onDialog={onDialog} />
        </Group>
        <Text size="xs" c="dimmed">
          {created_at === entered_state_at
            ? texts.age(ageText(created_at))
            : texts.ages(ageText(created_at), ageText(entered_state_at))}
        </Text>
        <TaskBadges task={task} />
      </Stack>
    </Card>
  )
}

/** What can be done with a card, without dragging it. */
function TaskMenu({
  task,
  transitions,
  onMove,
  onDialog,
}: { task: Task; transitions: WorkflowTransition[] } & Pick<CardHandlers, 'onMove' | 'onDialog'>) {
  const isAllowed = usePermissions(task.project_id)
  const command = useAction({
    run: async (run: () => Promise<unknown>) => run(),
    stale: staleOf(task),
    message: texts.done,
  })
  const isOpen = task.status === 'open'
  const mayRetry = isOpen && ['failed', 'unrouted'].includes(task.automation_status ?? '')
  const items = [
    isAllowed(updateTask) && (
      <Menu.Item key="assign" onClick={() => onDialog({ kind: 'assign', task })}>
        {texts.assign}
      </Menu.Item>
    ),
    isOpen && !task.pause_requested_at && isAllowed(pauseTask) && (
      <Menu.Item key="pause" onClick={() => onDialog({ kind: 'pause', task })}>
        {texts.pause}
      </Menu.Item>
    ),
    isOpen && task.pause_requested_at && isAllowed(resumeTask) && (
      <Menu.Item key="resume" onClick={() => command.mutate(async () => resumeTask(api, { task_id: task.id }))}>
        {texts.resume}
      </Menu.Item>
    ),
    mayRetry && isAllowed(retryTask) && (
      <Menu.Item key="retry" onClick={() => command.mutate(async () => retryTask(api, { task_id: task.id }))}>
        {texts.retry}
      </Menu.Item>
    ),
  ].filter(Boolean)
  if (transitions.length === 0 && items.length === 0) return null
  return (
    <>
      <Menu position="bottom-end">
        <Menu.Target>
          <ActionIcon size={28} aria-label={texts.actions(visible(task.title))}>
            <IconDots size={18} />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          {transitions.length > 0 && <Menu.Label>{texts.move}</Menu.Label>}
          {transitions.map(transition => (
            <Menu.Item
              key={transition.name}
              onClick={() => onMove({ task, transition })}
              rightSection={
                <Text size="xs" c="dimmed" pl="md">
                  {transition.requires_approval ? strings.workflows.approval : visible(transition.to)}
                </Text>
              }
            >
              {visible(transition.name)}
            </Menu.Item>
          ))}
          {transitions.length > 0 && items.length > 0 && <Menu.Divider />}
          {items}
        </Menu.Dropdown>
      </Menu>
      <Modal opened={command.isError} onClose={command.reset} title={strings.failed.action}>
        {command.error && <FailureAlert error={command.error} />}
      </Modal>
    </>
  )
}
