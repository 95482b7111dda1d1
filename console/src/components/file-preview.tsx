import { Alert, Group, Image, Stack, Text } from '@mantine/core'
import type { File as FileRecord } from '@muster/client'
import { downloadFile } from '@muster/client/operations'
import { IconFileOff } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useEffect, useState } from 'react'
import { api } from '#api.ts'
import * as strings from '#strings.ts'
import { Loaded } from './states.tsx'
import { sizeText, visible } from './text.tsx'
import { Value } from './value.tsx'

const TEXT_MAX = 5 * 1024 * 1024
const IMAGE_MAX = 20 * 1024 * 1024

/** First bytes of the image formats that are drawn. SVG is a document with scripts: its source is shown. */
const IMAGES: [type: string, starts: (bytes: Uint8Array) => boolean][] = [
  ['image/png', ([a, b, c, d]) => a === 0x89 && b === 0x50 && c === 0x4e && d === 0x47],
  ['image/jpeg', ([a, b, c]) => a === 0xff && b === 0xd8 && c === 0xff],
  ['image/gif', bytes => ['GIF87a', 'GIF89a'].includes(asciiOf(bytes, 0, 6))],
  ['image/webp', bytes => asciiOf(bytes, 0, 4) === 'RIFF' && asciiOf(bytes, 8, 12) === 'WEBP'],
]

const asciiOf = (bytes: Uint8Array, from: number, to: number): string =>
  String.fromCharCode(...bytes.subarray(from, to))

/** Returns the type of an image by its content, whatever the record says. */
const imageTypeOf = (bytes: Uint8Array): string | undefined => IMAGES.find(([, starts]) => starts(bytes))?.[0]

type Content =
  | { kind: 'image'; blob: Blob }
  | { kind: 'text'; text: string; isCut: boolean }
  | { kind: 'none'; reason: string }

async function contentOf({ id, size }: FileRecord, signal: AbortSignal): Promise<Content> {
  const length = size ?? 0
  const isLarge = length > IMAGE_MAX
  const headers = isLarge ? { range: `bytes=0-${TEXT_MAX - 1}` } : undefined
  const bytes = await (await downloadFile(api, { file_id: id }, { signal, headers })).bytes()
  const type = imageTypeOf(bytes)
  if (type) {
    if (isLarge) return { kind: 'none', reason: strings.files.tooLarge }
    return { kind: 'image', blob: new Blob([bytes], { type }) }
  }
  const shown = bytes.subarray(0, TEXT_MAX)
  const isCut = length > shown.length
  try {
    // A character that the end of the part cuts is no error.
    const text = new TextDecoder('utf-8', { fatal: true }).decode(shown, { stream: isCut })
    if (!text.includes('\0')) return { kind: 'text', text, isCut }
  } catch {
    // Not a text.
  }
  return { kind: 'none', reason: strings.files.noPreview }
}

/** The content of a file, where it is a text or an image. Markup of any kind is shown as its source. */
export function FilePreview({ file }: { file: FileRecord }) {
  const content = useQuery<Content>({
    queryKey: ['file', file.id, 'content', file.checksum_sha256],
    queryFn: ({ signal }) => contentOf(file, signal),
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  })
  return (
    <Loaded query={content} operation={downloadFile}>
      {shown => {
        if (shown.kind === 'image') return <BlobImage blob={shown.blob} name={visible(file.filename)} />
        if (shown.kind === 'none')
          return (
            <Group gap="sm">
              <IconFileOff size={20} aria-hidden />
              <Text c="dimmed">{shown.reason}</Text>
            </Group>
          )
        if (shown.text === '') return <Text c="dimmed">{strings.files.emptyFile}</Text>
        return (
          <Stack gap="sm">
            {shown.isCut && <Alert>{strings.files.cut(sizeText(TEXT_MAX))}</Alert>}
            <Value value={shown.text} label={strings.files.preview} />
          </Stack>
        )
      }}
    </Loaded>
  )
}

/** An image whose address exists while it is shown. */
function BlobImage({ blob, name }: { blob: Blob; name: string }) {
  const [address, setAddress] = useState<string>()
  useEffect(() => {
    const made = URL.createObjectURL(blob)
    setAddress(made)
    return () => URL.revokeObjectURL(made)
  }, [blob])
  return <Image src={address} alt={name} mah={480} w="auto" maw="100%" fit="contain" radius="md" mih={60} />
}
