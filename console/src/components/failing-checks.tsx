import { Alert, Text } from '@mantine/core'
import type { SystemStatus } from '@muster/client'
import { IconAlertTriangle } from '@tabler/icons-react'
import * as strings from '#strings.ts'
import { visible } from './text.tsx'

/** The checks of the deployment that fail; nothing if all pass. */
export function FailingChecks({ checks }: Pick<SystemStatus, 'checks'>) {
  const failing = Object.entries(checks).filter(([, result]) => result !== 'ok')
  if (failing.length === 0) return null
  return (
    <Alert color="red" icon={<IconAlertTriangle />} title={strings.queue.failing} role="alert">
      {failing.map(([name, result]) => (
        <Text size="sm" key={name}>
          {visible(name)}: {visible(result)}
        </Text>
      ))}
    </Alert>
  )
}
