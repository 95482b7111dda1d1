import { Button, Stack } from '@mantine/core'
import { IconPlugConnectedX } from '@tabler/icons-react'
import { useMutation } from '@tanstack/react-query'
import type { ErrorComponentProps } from '@tanstack/react-router'
import { readConfig } from '#session/config.ts'
import * as strings from '#strings.ts'
import { FailureAlert, Notice } from './states.tsx'

/** Shown for a view that failed. Nothing reloads by itself: other parts of the page stay usable, also offline. */
export function Crashed({ error, reset }: ErrorComponentProps) {
  if (/dynamically imported module|preload/i.test(error instanceof Error ? error.message : '')) return <ScriptMissing />
  return <FailureAlert error={error} title={strings.failed.crashed} onRetry={reset} />
}

/** A script that did not arrive. Browsers load it again only with the page, which stays until the service answers. */
function ScriptMissing() {
  const retry = useMutation({ mutationFn: readConfig, onSuccess: () => location.reload(), networkMode: 'always' })
  return (
    <Notice
      icon={<IconPlugConnectedX />}
      title={strings.scriptMissing.title}
      action={
        <Stack gap="sm" align="center">
          <Button onClick={() => retry.mutate()} loading={retry.isPending}>
            {strings.retry}
          </Button>
          {retry.error && <FailureAlert error={retry.error} />}
        </Stack>
      }
    >
      {strings.scriptMissing.text}
    </Notice>
  )
}
