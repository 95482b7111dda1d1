import exporting from 'fields:createExport'
import { Code, Group, Stack, Text } from '@mantine/core'
import type { PlaybookExport } from '@muster/client'
import { createExport, downloadFile, listExports } from '@muster/client/operations'
import { IconFileExport } from '@tabler/icons-react'
import { api, BUSY_MS, POLL_MS } from '#api.ts'
import { ActionButton, FormButton } from '#components/actions.tsx'
import { CommandForm } from '#components/command-form.tsx'
import { type Column, ListView, useList } from '#components/list.tsx'
import { saveAs } from '#components/save.ts'
import { Notice } from '#components/states.tsx'
import { statusText } from '#components/status.tsx'
import { sizeText, visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

/** Saves a file of the project. */
export function DownloadButton({ fileId, label }: { fileId: string; label: string }) {
  const isAllowed = usePermissions(useProjectId())
  if (!isAllowed(downloadFile)) return <Code>{fileId}</Code>
  return (
    <Group>
      <ActionButton
        label={label}
        run={async () => {
          const file = await downloadFile(api, { file_id: fileId })
          saveAs([await file.bytes()], file.filename ?? fileId)
        }}
      />
    </Group>
  )
}

type Subject = { subject_type: 'case' | 'playbook_execution'; subject_id: string }

const playbookExportColumns: Column<PlaybookExport>[] = [
  { title: strings.created, cell: ({ created_at }) => <When at={created_at} /> },
  {
    title: strings.status,
    isWide: true,
    cell: ({ status, error, files, omitted }) => (
      <Stack gap={4}>
        <Text>{statusText(status)}</Text>
        {error && <Text size="sm">{visible(error.message)}</Text>}
        <Group gap="xs">
          {files.map(({ file_id, format, size_bytes }) => (
            <DownloadButton
              key={file_id}
              fileId={file_id}
              label={`${strings.cases.download(format)} (${sizeText(size_bytes)})`}
            />
          ))}
        </Group>
        {omitted.length > 0 && (
          <Text size="sm" c="dimmed">
            {strings.cases.omitted(omitted.length)}
          </Text>
        )}
      </Stack>
    ),
  },
  { title: strings.expires, cell: ({ expires_at }) => <When at={expires_at} /> },
]

/** Exports of a case or an execution. */
export function Exports({ subject, projectId }: { subject: Subject; projectId: string }) {
  const isAllowed = usePermissions(projectId)
  const list = useList<PlaybookExport>(
    ['exports', subject.subject_id],
    async (_, bounds, signal) =>
      listExports(
        api,
        { project_id: projectId, ...subject, subject_type: [subject.subject_type], ...bounds },
        { signal },
      ).page(),
    {
      pollMs: rows => (rows.some(({ status }) => status === 'queued' || status === 'running') ? BUSY_MS : POLL_MS),
    },
  )
  const columns = playbookExportColumns
  return (
    <Stack gap="md">
      {isAllowed(createExport) && (
        <Group>
          <FormButton
            label={strings.cases.export}
            variant="default"
            leftSection={<IconFileExport size={16} />}
            form={close => (
              <CommandForm
                label={strings.cases.export}
                schema={exporting}
                only={['formats']}
                start={{ formats: ['json', 'markdown'] }}
                run={async values => createExport(api, { project_id: projectId, ...subject, ...values })}
                stale={[['exports', subject.subject_id]]}
                onDone={close}
              />
            )}
          />
        </Group>
      )}
      <ListView
        label={strings.cases.exports}
        list={list}
        operation={listExports}
        columns={columns}
        empty={
          <Notice icon={<IconFileExport />} title={strings.cases.noExports}>
            {strings.cases.noExportsText}
          </Notice>
        }
      />
    </Stack>
  )
}
