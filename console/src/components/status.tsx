import { Badge, Group, Text } from '@mantine/core'
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
import * as strings from '#strings.ts'
import { visible } from './text.tsx'

type Look = { icon: TablerIcon; color: string }

const NONE: Look = { icon: IconCircleDashed, color: 'gray' }
const QUEUED: Look = { icon: IconClock, color: 'gray' }
const BUSY: Look = { icon: IconPlayerPlay, color: 'indigo' }
const ASLEEP: Look = { icon: IconZzz, color: 'cyan' }
const ASKING: Look = { icon: IconHandStop, color: 'orange' }
const GOOD: Look = { icon: IconCircleCheck, color: 'teal' }
const DIFFERENT: Look = { icon: IconAlertCircle, color: 'orange' }
const FAILED: Look = { icon: IconCircleX, color: 'red' }

/** Appearance of states of records: never by color alone. */
const LOOKS: Record<string, Look> = {
  queued: QUEUED,
  running: BUSY,
  in_progress: BUSY,
  creating: BUSY,
  updating: BUSY,
  deleting: BUSY,
  sleeping: ASLEEP,
  waiting: ASLEEP,
  awaiting_input: ASKING,
  requires_action: ASKING,
  succeeded: GOOD,
  completed: GOOD,
  active: GOOD,
  approved: GOOD,
  created: GOOD,
  updated: GOOD,
  in_sync: GOOD,
  create: GOOD,
  update: BUSY,
  delete: FAILED,
  drifted: DIFFERENT,
  rejected: DIFFERENT,
  failed: FAILED,
  delete_failed: FAILED,
  missing: FAILED,
  expired: { icon: IconAlertCircle, color: 'red' },
  cancelled: { icon: IconBan, color: 'gray' },
  canceled: { icon: IconBan, color: 'gray' },
  skipped: { icon: IconCircleMinus, color: 'gray' },
}

const lookOf = (status: string): Look => LOOKS[status] ?? NONE

/** Returns the color of a status as the value of a style. */
export function statusColor(status: string): string {
  const { color } = lookOf(status)
  return color === 'gray' ? 'var(--mantine-color-dimmed)' : `var(--mantine-color-${color}-text)`
}

/** Returns the name of a status. */
export const statusText = (status: string): string => strings.statuses[status] ?? visible(status)

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

/** The status of a record as a badge, with a dot in its color. */
export function StatusBadge({ status, label = statusText(status) }: { status: string; label?: string }) {
  return (
    <Badge variant="dot" color={`${lookOf(status).color}.6`} miw="max-content">
      {label}
    </Badge>
  )
}
