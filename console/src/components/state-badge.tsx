import { Badge } from '@mantine/core'
import { strings } from '../strings.ts'
import { visible } from './text.tsx'

const COLORS: Record<string, string> = {
  completed: 'teal',
  succeeded: 'teal',
  active: 'teal',
  in_sync: 'teal',
  approved: 'teal',
  failed: 'red',
  delete_failed: 'red',
  missing: 'red',
  drifted: 'orange',
  rejected: 'orange',
  queued: 'blue',
  pending: 'blue',
  running: 'blue',
  creating: 'blue',
  updating: 'blue',
  deleting: 'blue',
}

/** The state of a record, with a dot in its color. */
export function StateBadge({ state, label = strings.states[state] ?? state }: { state: string; label?: string }) {
  return (
    <Badge variant="dot" color={COLORS[state] ?? 'gray'}>
      {visible(label)}
    </Badge>
  )
}
