-- Needs: i.
return tonumber(ARGV[i])end
i=i+2+ARGV[i+1]
end
return 0
