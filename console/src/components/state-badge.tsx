import { Badge } from '@mantine/core'
import { strings } from '../strings.ts'
import { visible } from './text.tsx'

const COLORS: Record<string, string> = {
  completed: 'teal.6',
  succeeded: 'teal.6',
  active: 'teal.6',
  created: 'teal.6',
  updated: 'teal.6',
  create: 'teal.6',
  update: 'blue.6',
  delete: 'red.6',
  in_sync: 'teal.6',
  approved: 'teal.6',
  failed: 'red.6',
  delete_failed: 'red.6',
  missing: 'red.6',
  drifted: 'orange.6',
  rejected: 'orange.6',
  queued: 'blue.6',
  pending: 'blue.6',
  running: 'blue.6',
  creating: 'blue.6',
  updating: 'blue.6',
  deleting: 'blue.6',
}

/** The state of a record, with a dot in its color. */
export function StateBadge({ state, label = strings.states[state] ?? state }: { state: string; label?: string }) {
  return (
    <Badge variant="dot" color={COLORS[state] ?? 'gray.6'} miw="max-content">
      {visible(label)}
    </Badge>
  )
}
