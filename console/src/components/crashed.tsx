import { Button } from '@mantine/core'
import { IconRefresh } from '@tabler/icons-react'
import type { ErrorComponentProps } from '@tanstack/react-router'
import * as strings from '#strings.ts'
import { FailureAlert, Notice } from './states.tsx'

/** Shown for a view that failed. A chunk that is gone means that the deployment was upgraded. */
export function Crashed({ error, reset }: ErrorComponentProps) {
  if (/dynamically imported module|preload/i.test(error instanceof Error ? error.message : ''))
    return (
      <Notice
        icon={<IconRefresh />}
        title={strings.newVersion.title}
        action={<Button onClick={() => location.reload()}>{strings.newVersion.reload}</Button>}
      >
        {strings.newVersion.text}
      </Notice>
    )
  return <FailureAlert error={error} title={strings.failed.crashed} onRetry={reset} />
}
