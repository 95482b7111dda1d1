import { Alert, Button, Code, CopyButton, Group, Stack } from '@mantine/core'
import { IconAlertTriangle } from '@tabler/icons-react'
import * as strings from '#strings.ts'

/** A secret that is shown once: its form forgets it when it closes. */
export function SecretOnce({ secret, notice, onDone }: { secret: string; notice: string; onDone: () => void }) {
  return (
    <Stack gap="md">
      <Alert icon={<IconAlertTriangle />} color="yellow">
        {notice}
      </Alert>
      <Code block className="wrap">
        {secret}
      </Code>
      <Group>
        <CopyButton value={secret}>
          {({ copied, copy }) => <Button onClick={copy}>{copied ? strings.copied : strings.copy}</Button>}
        </CopyButton>
        <Button variant="default" onClick={onDone}>
          {strings.key.done}
        </Button>
      </Group>
    </Stack>
  )
}
