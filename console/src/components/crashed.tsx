import { Button, Group } from '@mantine/core'
import { IconPlugConnectedX } from '@tabler/icons-react'
import type { ErrorComponentProps } from '@tanstack/react-router'
import * as strings from '#strings.ts'
import { ScriptMissing } from './on-demand.tsx'
import { FailureAlert, Notice } from './states.tsx'

/** Shown for a view that failed. Nothing reloads by itself: other parts of the page stay usable, also offline. */
export function Crashed({ error, reset }: ErrorComponentProps) {
  if (!(error instanceof ScriptMissing) && !/dynamically imported module|preload/i.test(messageOf(error)))
    return <FailureAlert error={error} title={strings.failed.crashed} onRetry={reset} />
  const retry = () => {
    if (error instanceof ScriptMissing) error.forget()
    reset()
  }
  return (
    <Notice
      icon={<IconPlugConnectedX />}
      title={strings.scriptMissing.title}
      action={
        <Group gap="sm">
          {error instanceof ScriptMissing && <Button onClick={retry}>{strings.retry}</Button>}
          <Button variant="default" onClick={() => location.reload()}>
            {strings.scriptMissing.reload}
          </Button>
        </Group>
      }
    >
      {strings.scriptMissing.text}
    </Notice>
  )
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : '')
