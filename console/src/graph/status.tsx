import { Group, Text } from '@mantine/core'
import {
  IconAlertCircle,
  IconBan,
  IconCircleCheck,
  IconCircleDashed,
  IconCircleMinus,
  IconCircleX,
  IconClock,
  IconHandStop,
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
