import { Group, Text } from '@mantine/core'
import {
  IconAlertCircle,
  IconAlertTriangle,
  IconBan,
  IconCircleCheck,
  IconCircleDashed,
  IconCircleMinus,
  IconCirclePlus,
  IconCircleX,
  IconClock,
  IconHandStop,
  IconPencil,
  IconPlayerPlay,
  IconZzz,
  type TablerIcon,
} from '@tabler/icons-react'
import { strings } from '../strings.ts'

/** How statuses of runs, nodes and turns look: never by color alone. */
const LOOKS: Record<string, { icon: TablerIcon; color: string }> = {
  queued: { icon: IconClock, color: 'gray' },
  pending: { icon: IconCircleDashed, color: 'gray' },
  running: { icon: IconPlayerPlay, color: 'indigo' },
  in_progress: { icon: IconPlayerPlay, color: 'indigo' },
  sleeping: { icon: IconZzz, color: 'cyan' },
  waiting: { icon: IconZzz, color: 'cyan' },
  awaiting_input: { icon: IconHandStop, color: 'orange' },
  requires_action: { icon: IconHandStop, color: 'orange' },
  succeeded: { icon: IconCircleCheck, color: 'teal' },
  completed: { icon: IconCircleCheck, color: 'teal' },
  failed: { icon: IconCircleX, color: 'red' },
  expired: { icon: IconAlertCircle, color: 'red' },
  cancelled: { icon: IconBan, color: 'gray' },
  skipped: { icon: IconCircleMinus, color: 'gray' },
}

const lookOf = (status: string) => LOOKS[status] ?? LOOKS.pending

/** Returns the color of a status as the value of a style. */
export function statusColor(status: string): string {
  const { color } = lookOf(status)
  return color === 'gray' ? 'var(--mantine-color-dimmed)' : `var(--mantine-color-${color}-text)`
}

/** Returns the name of a status. */
export const statusText = (status: string): string => strings.graph.statuses[status] ?? status

/** The icon of a status, without its name. */
export function StatusIcon({ status, size = 16 }: { status: string; size?: number }) {
  const { icon: Icon } = lookOf(status)
  return <Icon size={size} color={statusColor(status)} aria-hidden style={{ flex: 'none' }} />
}

/** A status with its icon. */
export function Status({ status }: { status: string }) {
  return (
    <Group gap={6} wrap="nowrap" display="inline-flex">
      <StatusIcon status={status} />
      <Text component="span" size="sm" fw={600}>
        {statusText(status)}
      </Text>
    </Group>
  )
}

/** A mark of a node or an edge: what a validator or a comparison found there. */
export type Mark = 'problem' | 'warning' | 'added' | 'removed' | 'changed'

const MARKS: Record<Mark, { icon: TablerIcon; color: string }> = {
  problem: { icon: IconAlertCircle, color: 'red' },
  warning: { icon: IconAlertTriangle, color: 'orange' },
  added: { icon: IconCirclePlus, color: 'teal' },
  removed: { icon: IconCircleMinus, color: 'red' },
  changed: { icon: IconPencil, color: 'orange' },
}

/** Returns the color of a mark as the value of a style. */
export const markColor = (mark: Mark): string => `var(--mantine-color-${MARKS[mark].color}-text)`

/** The icon of a mark, without its name. */
export function MarkIcon({ mark, size = 16 }: { mark: Mark; size?: number }) {
  const { icon: Icon } = MARKS[mark]
  return <Icon size={size} color={markColor(mark)} aria-hidden style={{ flex: 'none' }} />
}
